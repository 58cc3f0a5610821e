"""Parameters, gradients and optimizer state by name."""

from collections.abc import Mapping

import numpy as np

from .errors import InvalidArgument, nearest


class Tensors(Mapping):
    """name -> float32 array, a copy of the engine's tensor of one kind at the time of reading.

    bf16 is widened exactly. wte has its Vp rows. Assigning an array writes the engine's tensor (rounded to
    nearest even in bf16; a new parameter also becomes the master weight): `model.params["wte"] = array`,
    where wte may have V or Vp rows. Raises KeyError for an unknown name, InvalidArgument for a shape that
    doesn't fit, and Unavailable or StateError where the engine keeps no such tensor.
    """

    def __init__(self, model, kind):
        self._model, self._kind = model, kind

    def __getitem__(self, name):
        index = self._index(name)
        array = np.empty(self._model.param_shapes[name], np.float32)
        self._transfer("llmc_tensor_read", index, array)
        return array

    def __setitem__(self, name, values):
        index, shape = self._index(name), self._model.param_shapes[name]
        try:
            array = np.ascontiguousarray(values, np.float32)
        except (TypeError, ValueError):
            raise InvalidArgument(f"{name} must be numbers of shape {shape}, got {values!r:.80}") from None
        unpadded = (self._model.config.vocab, *shape[1:])
        if name == "wte" and array.shape == unpadded != shape:
            array = np.concatenate([array, np.zeros((shape[0] - unpadded[0], shape[1]), np.float32)])
        if array.shape != shape:
            raise InvalidArgument(f"{name} has shape {shape}, got {array.shape}")
        self._transfer("llmc_tensor_write", index, array)

    def __iter__(self):
        return iter(self._model.param_shapes)

    def __len__(self):
        return len(self._model.param_shapes)

    def _index(self, name):
        names = list(self._model.param_shapes)
        if name not in names:
            raise KeyError(f"no tensor {name!r}: {nearest(name, names)}")
        return names.index(name)

    def _transfer(self, verb, index, array):
        model = self._model
        kind, dtype = model.constant(self._kind), model.constant("LLMC_FP32")
        model.handle.call(verb, kind, index, dtype, model.library.ffi.from_buffer(array), array.nbytes)

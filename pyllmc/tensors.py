"""Parameters, gradients and optimizer state by name."""

from collections.abc import Mapping

import numpy as np

from .errors import InvalidArgument, nearest


class ReadTensors(Mapping):
    """name -> float32 array, a copy of the engine's tensor of one kind at the time of reading, by the verb `read`.

    bf16 is widened exactly. wte has its Vp rows. Raises KeyError for an unknown name, and Unavailable or
    StateError where the engine keeps no such tensor.
    """

    def __init__(self, model, kind, read="llmc_tensor_read"):
        self._model, self._kind, self._read = model, kind, read

    def __getitem__(self, name):
        index = self._index(name)
        array = np.empty(self._model.param_shapes[name], np.float32)
        self._transfer(self._read, index, array)
        return array

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


class Tensors(ReadTensors):
    """ReadTensors that can be assigned: `model.params["wte"] = array` writes the engine's tensor.

    Rounded to nearest even in bf16; a new parameter also becomes the master weight; wte may have V or Vp rows.
    Raises InvalidArgument for a shape that doesn't fit.
    """

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

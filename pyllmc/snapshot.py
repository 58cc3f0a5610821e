"""The training state of one moment, readable while training goes on."""

import contextlib
import weakref

from . import _native
from .errors import LlmcError
from .tensors import ReadTensors


class Snapshot:
    """What a checkpoint holds of a model: config, options, params, m, v and master (ReadTensors), rng, updates, guard.

    Get one from GPT2.snapshot(). All of it is as of that call, whatever the model does meanwhile. One thread at a
    time reads it, which may be another than the one that trains. close() it, or use it in a `with` block, so that
    the model can make another.
    """

    def __init__(self, model):
        model.handle.call("llmc_snapshot_take")
        self._model = model
        self._finalizer = weakref.finalize(self, _release, model.handle)
        self.config, self.options, self.updates, self.rng = model.config, model.options, model.updates, model.rng
        self.params, self.m, self.v, self.master = (
            ReadTensors(model, kind, "llmc_snapshot_read")
            for kind in ("LLMC_PARAM", "LLMC_ADAM_M", "LLMC_ADAM_V", "LLMC_MASTER")
        )

    @property
    def guard(self):
        """As GPT2.guard."""
        record = self._model.library.ffi.new("llmc_guard *")
        self._model.handle.call("llmc_snapshot_guard", record)
        return _native.as_dict(self._model.library.ffi, record[0])

    def close(self):
        """Let the model make another. Closing twice is fine."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _release(handle):
    with contextlib.suppress(LlmcError):  # a closed model has nothing left to release
        handle.call("llmc_snapshot_release")

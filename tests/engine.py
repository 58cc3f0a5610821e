"""The C ABI as a test sees it: cffi on the library itself, no line of pyllmc's wrapper in between."""

import re

import cffi
import numpy as np

from pyllmc import _find, _native
from pyllmc.config import GPT2Config
from pyllmc.errors import LibraryNotFound

PARAM, GRAD, ADAM_M, ADAM_V, MASTER = range(5)
FP32, BF16 = 0, 1

ffi = cffi.FFI()
HEADER = _find.header_path().read_text()
ffi.cdef(re.search(r"begin ABI.*?\*/(.*)/\* ---- end ABI", HEADER, re.S)[1])
STATUS = {value: name[5:] for name, value in ffi.typeof("llmc_status").relements.items()}


class EngineError(Exception):
    """status ("INVALID", ...) and the engine's message."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


_libraries = {}


def load(backend):
    """The library of a backend ("cpu", "cuda"), opened once."""
    if backend not in _libraries:
        path = _find.find_library(backend)
        with _native._idle_threads_sleep():  # each loading of the process must decide alike
            lib = _find.open_with_dependencies(path, ffi.dlopen)
        if ffi.string(lib.llmc_backend()).decode() != backend:
            raise LibraryNotFound(f"{path} is no {backend} engine")
        _libraries[backend] = lib
    return _libraries[backend]


def message(lib):
    return ffi.string(lib.llmc_last_error()).decode()


def check(lib, status):
    if status:
        raise EngineError(STATUS[status], message(lib))


def make_config(config):
    return ffi.new("llmc_config *", [config.context, config.vocab, config.layers, config.heads, config.channels])


def make_options(lib, **changes):
    options = ffi.new("llmc_options *")
    lib.llmc_options_default(options)
    for name, value in changes.items():
        setattr(options, name, value)
    return options


def same(a, b):
    """Whether two lists of what `Engine.read` gives are equal bit for bit, NaN apart."""
    return all(
        x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x) for x, y in zip(a, b, strict=True)
    )


class Engine:
    """A model on a backend. Options are those of llmc_options; B, T, precision fp32 unless given."""

    def __init__(self, config, B, T, backend="cpu", params=None, **options):
        self.lib, self.config, self.B, self.T = load(backend), config, B, T
        self.names = list(config.shapes())
        given = {"precision": FP32, "master_weights": 0, "tf32": 0, "deterministic": 1, **options}
        self.options = make_options(self.lib, batch=B, seq_len=T, **given)
        out = ffi.new("llmc_model **")
        check(self.lib, self.lib.llmc_model_create(make_config(config), self.options, out))
        self.handle = out[0]
        if params is not None:
            self.write(params)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.lib.llmc_model_free(self.handle)
        self.handle = ffi.NULL

    def call(self, verb, *args):
        check(self.lib, getattr(self.lib, "llmc_" + verb)(self.handle, *args))

    # -- tensors

    def read_one(self, name, kind=PARAM):
        out = np.empty(self.config.shapes()[name], np.float32)
        self.call("tensor_read", kind, self.names.index(name), FP32, ffi.from_buffer(out), out.nbytes)
        return out

    def write_one(self, name, value, kind=PARAM):
        value = np.ascontiguousarray(value, np.float32)
        self.call("tensor_write", kind, self.names.index(name), FP32, ffi.from_buffer(value), value.nbytes)

    def read(self, kind=PARAM):
        return {name: self.read_one(name, kind) for name in self.names}

    def read_snapshot(self, kind):
        """As `read`, of the snapshot."""
        values = {name: np.empty(shape, np.float32) for name, shape in self.config.shapes().items()}
        for index, value in enumerate(values.values()):
            self.call("snapshot_read", kind, index, FP32, ffi.from_buffer(value), value.nbytes)
        return values

    def write(self, values, kind=PARAM):
        for name, value in values.items():
            self.write_one(name, value, kind)

    # -- steps

    def submit(self, inputs, targets):
        """A slot with this batch in it, uploaded or on its way."""
        slot = ffi.new("llmc_slot *")
        self.call("slot_acquire", 30000, slot)  # a slot that never comes fails the test and doesn't hang it
        for memory, ids in ((slot.inputs, inputs), (slot.targets, targets)):
            host = np.frombuffer(ffi.buffer(memory, 4 * slot.count), np.int32)
            host[:] = np.reshape(ids, -1)
        self.call("slot_submit", slot.index)
        return slot.index

    def micro_step(self, inputs, targets, i=0, n=1):
        self.call("micro_step", self.submit(inputs, targets), i, n)

    def update(self, **hyper):
        """Enqueues the update; the ticket. Hyper-parameters not given are 0 (off), betas and eps GPT-2's."""
        given = {"learning_rate": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "step": 1, **hyper}
        ticket = ffi.new("int64_t *")
        self.call("update", ffi.new("llmc_hyper *", given), ticket)
        return ticket[0]

    def result(self, ticket, wait_ms=-1):
        out = ffi.new("llmc_step_result *")
        self.call("result", ticket, wait_ms, out)
        return out

    def step(self, batches, **hyper):
        """One whole update over a list of (inputs, targets); waits and returns its result."""
        for i, batch in enumerate(batches):
            self.micro_step(*batch, i, len(batches))
        return self.result(self.update(**hyper))

    def loss_and_grads(self, inputs, targets):
        """Loss and gradients at the present weights, which stay as they are."""
        self.micro_step(inputs, targets)
        grads = self.read(GRAD)
        return self.result(self.update()).loss, grads

    # -- looking

    def eval(self, inputs, targets):
        """(mean loss, losses per position)."""
        each, mean = np.empty((self.B, self.T), np.float32), ffi.new("float *")
        self.call("eval", self.submit(inputs, targets), ffi.from_buffer("float[]", each), mean)
        return mean[0], each

    def logits(self, inputs):
        out = np.empty((self.B, self.T, self.config.vocab), np.float32)
        slot = self.submit(inputs, np.zeros_like(inputs))
        self.call("logits", slot, ffi.from_buffer("float[]", out), out.nbytes)
        return out

    def prefill(self, tokens):
        tokens = np.ascontiguousarray(tokens, np.int32)
        out = np.empty((len(tokens), self.config.vocab), np.float32)
        self.call("prefill", ffi.from_buffer("int32_t[]", tokens), *tokens.shape, ffi.from_buffer("float[]", out))
        return out

    def decode(self, tokens):
        tokens = np.ascontiguousarray(tokens, np.int32)
        out = np.empty((len(tokens), self.config.vocab), np.float32)
        self.call("decode", ffi.from_buffer("int32_t[]", tokens), ffi.from_buffer("float[]", out))
        return out


def tiny_config(**changes):
    """A model small enough for thousands of steps a second."""
    return GPT2Config(**{"layers": 2, "heads": 2, "channels": 32, "vocab": 257, "context": 16, **changes})

"""Single ops of the engine on NumPy arrays: cffi on the library built from harness.cu.

`Ops(backend, dtype)` has a method per op of ops.h; shapes are taken from the arrays, and what the op
assigns starts as NaN. `into` arguments are what the op adds to; None: it assigns.
"""

import pathlib
import re

import cffi
import numpy as np

from pyllmc import _find

ROOT = pathlib.Path(__file__).resolve().parents[2]
HARNESS = (ROOT / "tests" / "ops" / "harness.cu").read_text()

ffi = cffi.FFI()
ffi.cdef(re.search(r"begin ABI.*?\*/(.*)/\* ---- end ABI", _find.header_path().read_text(), re.S)[1])
for plain, name, parameters in re.findall(r"^EXPORT(_PLAIN)?\((\w+), (\(.*?\)),", HARNESS, re.M):
    for suffix in [""] if plain else ["_fp32", "_bf16"]:
        ffi.cdef(f"const char *op_{name}{suffix}{parameters};")


class OpError(Exception):
    pass


def library_path(backend):
    return ROOT / "build" / f"libllmc_ops_{backend}.so"


_libraries, _configured = {}, {}


def _load(backend):
    if backend not in _libraries:
        _libraries[backend] = _find.open_with_dependencies(library_path(backend), ffi.dlopen)
    return _libraries[backend]


def _pointer(value):
    if not isinstance(value, np.ndarray):
        return ffi.NULL if value is None else value
    assert value.flags.c_contiguous
    kind = {"float32": "float *", "int32": "int *", "int64": "int64_t *"}[value.dtype.name]
    return ffi.cast(kind, value.ctypes.data)


def nans(*shape):
    return np.full(shape, np.nan, np.float32)


def round_bf16(x):
    """To the nearest bf16, ties to even, still as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def start(into, *shape):
    """An output's contents before the op, and whether the op adds to them."""
    return (nans(*shape), 0) if into is None else (np.array(into, np.float32), 1)


class Ops:
    def __init__(self, backend="cpu", dtype="fp32", threads=2, tf32=0, deterministic=1, misaligned=0):
        self.backend, self.dtype, self.deterministic = backend, dtype, deterministic
        self.lib = _load(backend)
        self.configuration = (threads, tf32, deterministic, misaligned)

    def call(self, name, *arguments, plain=False):
        """op_<name>; what it throws becomes an OpError."""
        if _configured.get(self.backend) != self.configuration:
            _configured[self.backend] = self.configuration
            self._run("op_configure", self.configuration)
        self._run(f"op_{name}" + ("" if plain else f"_{self.dtype}"), [_pointer(a) for a in arguments])

    def _run(self, function, arguments):
        message = getattr(self.lib, function)(*arguments)
        if message:
            raise OpError(ffi.string(message).decode())

    def device_count(self):
        count = np.zeros(1, np.int32)
        self._run("op_device_count", [_pointer(count)])
        return int(count[0])

    def device_alloc(self, count):
        self.call("device_alloc", count, plain=True)

    def embedding_forward(self, tokens, wte, wpe, first=0):
        (B, T), C = tokens.shape, wte.shape[1]
        out = nans(B, T, C)
        self.call("embedding_forward", out, tokens, wte, wpe, B, T, C, first, len(wte), len(wpe))
        return out

    def embedding_backward(self, dwte, dout, tokens, V, maxT, into=None):
        B, T, C = dout.shape
        dwte = dwte.copy()
        dwpe, add = start(into, maxT, C)
        self.call("embedding_backward", dwte, dwpe, dout, tokens, B, T, C, V, maxT, add)
        return dwte, dwpe

    def layernorm_forward(self, inp, w, b):
        N, C = inp.shape
        out, mean, rstd = nans(N, C), nans(N), nans(N)
        self.call("layernorm_forward", out, mean, rstd, inp, w, b, N, C)
        return out, mean, rstd

    def layernorm_backward(self, dout, inp, w, mean, rstd, into_inp=None, into_param=(None, None, None), sums=True):
        N, C = inp.shape
        dinp, add_inp = start(into_inp, N, C)
        (dw, add), (db, _), (dsum, _) = (start(into, C) for into in into_param)
        dsum = dsum if sums else None
        self.call("layernorm_backward", dinp, dw, db, dsum, dout, inp, w, mean, rstd, N, C, add_inp, add)
        return dinp, dw, db, dsum

    def linear_forward(self, inp, w, b=None):
        (N, C), OC = inp.shape, len(w)
        out = nans(N, OC)
        self.call("linear_forward", out, inp, w, b, N, C, OC)
        return out

    def linear_residual_forward(self, residual, inp, w, b=None, in_place=False):
        (N, C), OC = inp.shape, len(w)
        out = nans(N, OC)
        self.call("linear_residual_forward", out, residual, inp, w, b, N, C, OC, in_place)
        return out

    def linear_gelu_forward(self, inp, w, b):
        (N, C), OC = inp.shape, len(w)
        out, pre = nans(N, OC), nans(N, OC)
        self.call("linear_gelu_forward", out, pre, inp, w, b, N, C, OC)
        return out, pre

    def linear_backward_input(self, dout, w):
        (N, OC), C = dout.shape, w.shape[1]
        dinp = nans(N, C)
        self.call("linear_backward_input", dinp, dout, w, N, C, OC)
        return dinp

    def linear_gelu_backward_input(self, dout, w, pre, sums=True, into=None):
        (N, OC), C = dout.shape, w.shape[1]
        dpre, (dsum, add) = nans(N, C), start(into, C)
        dsum = dsum if sums else None
        self.call("linear_gelu_backward_input", dpre, dsum, dout, w, pre, N, C, OC, add)
        return dpre, dsum

    def linear_backward_weight(self, dout, inp, into=None):
        (N, OC), C = dout.shape, inp.shape[1]
        dw, add = start(into, OC, C)
        self.call("linear_backward_weight", dw, dout, inp, N, C, OC, add)
        return dw

    def graph_memsets(self, memory, replace):
        """(`memory`, uint8, after a captured graph of memsets, how many of its nodes are memsets)."""
        memory, left = np.array(memory).view(np.int32), np.zeros(1, np.int32)
        self.call("graph_memsets", memory, memory.size, replace, left, plain=True)
        return memory.view(np.uint8), int(left[0])

    def own_gelu_forward(self, inp, w, b):
        """As linear_gelu_forward by our own product; None where there is none."""
        (N, C), OC, ran = inp.shape, len(w), np.zeros(1, np.int32)
        out, pre = nans(N, OC), nans(N, OC)
        self.call("own_gelu_forward", out, pre, inp, w, b, N, C, OC, ran, plain=True)
        return (out, pre) if ran[0] else None

    def own_gelu_backward(self, dout, w, pre, sums=True):
        """As linear_gelu_backward_input by our own product; None where there is none."""
        (N, OC), C, ran = dout.shape, w.shape[1], np.zeros(1, np.int32)
        dpre, dsum = nans(N, C), nans(C) if sums else None
        self.call("own_gelu_backward", dpre, dsum, dout, w, pre, N, C, OC, ran, plain=True)
        return (dpre, dsum) if ran[0] else None

    def gelu_forward(self, inp):
        out = nans(*inp.shape)
        self.call("gelu_forward", out, inp, inp.size)
        return out

    def gelu_backward(self, dout, inp, in_place=False, sums=True, into=None):
        (N, C), (dsum, add) = inp.shape, start(into, inp.shape[1])
        dinp, dsum = nans(N, C), dsum if sums else None
        self.call("gelu_backward", dinp, dsum, dout, inp, N, C, in_place, add)
        return dinp, dsum

    def attention_prepare(self, B, T, C, NH, choice=0):
        """Why the choice fell back, "" if it didn't."""
        note = ffi.new("char[1024]")
        self.call("attention_prepare", note, 1024, choice, self.deterministic, B, T, C, NH)
        return ffi.string(note).decode()

    def attention_forward(self, qkv, NH, choice=0):
        B, T, C = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        out, lse = nans(B, T, C), nans(B, NH, T)
        self.call("attention_forward", out, lse, qkv, choice, self.deterministic, B, T, C, NH)
        return out, lse

    def attention_backward(self, dout, qkv, out, lse, NH, choice=0, sums=True, into=None):
        B, T, C = dout.shape
        dqkv, (dsum, add) = nans(B, T, 3 * C), start(into, 3 * C)
        dsum = dsum if sums else None
        self.call("attention_backward", dqkv, dsum, dout, qkv, out, lse, choice, self.deterministic, B, T, C, NH, add)
        return dqkv, dsum

    def attention_decode(self, cache, qkv, position, NH):
        rows, T, C = cache.shape[0], cache.shape[1], cache.shape[2] // 3
        out, cache = nans(rows, C), cache.copy()
        self.call("attention_decode", out, cache, qkv, rows, T, position, C, NH)
        return out, cache

    def classifier(self, logits, targets, dloss, V, write_dlogits=True):
        rows, Vp = logits.shape
        losses, logits = nans(rows), logits.copy()
        self.call("classifier", losses, logits, targets, dloss, rows, V, Vp, write_dlogits)
        return losses, logits

    def mean_loss(self, losses, scale, into=None):
        mean, add = start(None if into is None else [into], 1)
        self.call("mean_loss", mean, losses, scale, len(losses), add, plain=True)
        return mean[0]

    def global_norm_squared(self, grads):
        squared = nans(1)
        self.call("global_norm_squared", squared, grads, grads.size)
        return squared[0]

    def gate(self, guard, hyper, loss, norm_squared, ticket=0):
        """The record; guard (a struct) is updated."""
        record = ffi.new("llmc_step_result *")
        self.call("gate", record, guard, hyper, ticket, loss, norm_squared, plain=True)
        return record

    def layout(self, config):
        """Offsets and counts of the 16 tensors in a flat buffer, and its length."""
        offset, count, total = np.zeros(16, np.int64), np.zeros(16, np.int64), np.zeros(1, np.int64)
        self.call("layout", config, offset, count, total, plain=True)
        return offset, count, int(total[0])

    def adamw(self, params, m, v, grads, config, hyper, record, master=None, rounding=1):
        state = [None if a is None else a.copy() for a in (params, master, m, v)]
        self.call("adamw", *state, grads, config, hyper, record, rounding)
        return state

    def round_trip(self, x):
        """Narrowed to the storage type and widened again; passes the lane services on its way."""
        out = nans(*x.shape)
        self.call("round_trip", out, x, x.size)
        return out

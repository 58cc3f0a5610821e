"""Every op against float64 on the CPU, and the CUDA ops against the CPU's, at friendly and awkward shapes.

A case builds inputs, runs an op, and says in float64 NumPy (tests/oracle.py, gradients by autograd) what
it should have given. The same cases serve both comparisons.
"""

from typing import NamedTuple

import numpy as np
import oracle
import pytest
from autograd import make_vjp
from ops.ops import OpError, Ops, ffi, library_path, round_bf16


class Limit(NamedTuple):
    """Largest |got - true| / (|true| + rms(true)) over an output's elements."""

    cpu: float  # fp32 against float64
    cuda: float  # fp32 against the CPU
    bf16: float  # bf16 against the CPU on inputs rounded to bf16: 2^-9 = 0.002 is one rounding
    why: str


LIMITS = {
    "embedding_forward": Limit(2e-7, 2e-7, 0.003, "one addition"),
    "embedding_backward": Limit(
        2e-6, 2e-6, 0.008, "a sum over the positions of a token; bf16 rounds sum and total"
    ),
    "layernorm_forward": Limit(2e-6, 3e-6, 0.006, "sums of C terms, then a product chain; fp32 statistics"),
    "layernorm_backward": Limit(5e-6, 1e-5, 0.008, "two sums per row, N terms per column, cancellation"),
    "linear_forward": Limit(
        3e-6, 1e-5, 0.008, "C products, each sum in another order; bf16 rounds once, twice where a width is odd"
    ),
    "linear_residual_forward": Limit(3e-6, 1e-5, 0.006, "C products; bf16 rounds once, or once more before the product"),
    "linear_gelu_forward": Limit(3e-6, 1e-5, 0.01, "bf16 may round before GELU"),
    "linear_backward_input": Limit(3e-6, 1e-5, 0.004, "OC products"),
    "linear_gelu_backward_input": Limit(3e-6, 1e-5, 0.014, "bf16 may round before the factor gelu', and its sum again"),
    "linear_backward_weight": Limit(5e-6, 1e-5, 0.006, "N products; bf16 rounds once, twice when it adds"),
    "gelu_forward": Limit(1e-6, 1e-6, 0.003, "a dozen operations"),
    "gelu_backward": Limit(1e-6, 1e-6, 0.006, "a dozen operations, rounded once; sums are rounded again"),
    "attention_forward": Limit(
        3e-6, 1e-5, 0.01, "bf16 rounds the probabilities, up to T of them, and the output"
    ),
    "attention_backward": Limit(1e-5, 3e-5, 0.03, "bf16 rounds P and dS; dP - D cancels"),
    "attention_decode": Limit(3e-6, 1e-5, 0.01, "as attention_forward"),
    "classifier": Limit(3e-6, 1e-5, 0.004, "fp32 from the logits on; gradients are rounded once"),
    "mean_loss": Limit(1e-6, 1e-6, 1e-6, "one sum"),
    "global_norm_squared": Limit(2e-6, 5e-6, 5e-6, "positive terms only; fp32 from the gradients on"),
    "adamw": Limit(2e-6, 2e-6, 0.01, "a dozen operations; stochastic rounding is off by up to one bf16 step"),
}


# Outputs whose error counts absolutely below a size, by op and position: the loss of a vocabulary of one
# is exactly 0, and the library's bf16 GELU has a tanh that is good to 5e-4 (one value has no others to
# be measured against).
FLOORS = {("classifier", 0): 0.1, ("linear_gelu_forward", 0): 0.1}


def error(got, true, floor=1e-30):
    true = np.asarray(true, np.float64)
    assert got.shape == true.shape
    if got.size == 0:
        return 0.0
    scale = np.abs(true) + np.sqrt(np.mean(true**2)) + floor
    worst = np.max(np.abs(got - true) / scale)
    return np.inf if np.isnan(worst) else worst


def check(op, got, true, column, names=None):
    limit = getattr(LIMITS[op], column)
    for i, (g, t) in enumerate(zip(got, true, strict=True)):
        e = error(np.asarray(g), t, FLOORS.get((op, i), 1e-30))
        assert e <= limit, f"{op}: output {i} is off by {e:.3g}, limit {limit:g} ({LIMITS[op].why})"


def normal(rng, *shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def vjp(function, dout, *inputs):
    """Gradients of sum(function(*inputs) * dout) in each input."""
    return tuple(make_vjp(function, i)(*inputs)[0](dout) for i in range(len(inputs)))


def rows(rng, N, C):
    """Rows to normalise; the first so small that the 1e-5 under the root decides."""
    inp = normal(rng, N, C, scale=3) + 1
    inp[0] = normal(rng, C, scale=2e-3)
    return inp


def row_statistics(inp):
    wide = inp.astype(np.float64)
    mean, variance = wide.mean(-1), wide.var(-1)
    return mean.astype(np.float32), (1 / np.sqrt(variance + 1e-5)).astype(np.float32)


def linear(inp, w, b):
    return inp @ w.T + b


# -- cases: build(rng, *shape) gives inputs, run(ops, *inputs) and truth(*inputs in float64) -----------

CASES = []


def case(op, *shapes):
    def register(build):
        CASES.extend(
            pytest.param(op, build, s, id=f"{build.__name__}-{'-'.join(map(str, s))}") for s in shapes
        )
        return build

    return register


EMBEDDING = [(2, 7, 48, 257, 9, 0), (1, 1, 33, 5, 4, 3), (4, 64, 96, 257, 64, 0), (3, 5, 1600, 1, 8, 2)]


@case("embedding_forward", *EMBEDDING)
def embedding_forward(rng, B, T, C, V, maxT, first):
    tokens = rng.integers(0, V, (B, T), dtype=np.int32)
    inputs = tokens, normal(rng, (V + 127) // 128 * 128, C), normal(rng, maxT, C)
    return (
        inputs,
        lambda ops, tokens, wte, wpe: [ops.embedding_forward(tokens, wte, wpe, first)],
        lambda tokens, wte, wpe: [wte[tokens] + wpe[first : first + T]],
    )


def embedding_backward_build(rng, B, T, C, V, maxT, add):
    tokens = rng.integers(0, V, (B, T), dtype=np.int32)
    dwte, dwpe = normal(rng, (V + 127) // 128 * 128, C), normal(rng, maxT, C)

    def run(ops, tokens, dwte, dwpe, dout):
        return ops.embedding_backward(dwte, dout, tokens, V, maxT, dwpe if add else None)

    def truth(tokens, dwte, dwpe, dout):
        dwte, dwpe = dwte.copy(), dwpe * add
        np.add.at(dwte, tokens, dout)
        dwpe[:T] += dout.sum(0)
        return dwte, dwpe

    return (tokens, dwte, dwpe, normal(rng, B, T, C)), run, truth


@case("embedding_backward", *EMBEDDING)
def embedding_backward(rng, B, T, C, V, maxT, _):
    return embedding_backward_build(rng, B, T, C, V, maxT, 0)


@case("embedding_backward", *EMBEDDING[:3])
def embedding_backward_add(rng, B, T, C, V, maxT, _):
    return embedding_backward_build(rng, B, T, C, V, maxT, 1)


ROWS = [(14, 48), (1, 33), (64, 80), (7, 96), (33, 160), (3, 1600), (200, 768), (130, 33)]


@case("layernorm_forward", *ROWS)
def layernorm_forward(rng, N, C):
    def truth(inp, w, b):
        variance = inp.var(-1)
        return oracle.layernorm(inp, w, b), inp.mean(-1), 1 / np.sqrt(variance + 1e-5)

    inputs = rows(rng, N, C), normal(rng, C), normal(rng, C)
    return inputs, lambda ops, *a: ops.layernorm_forward(*a), truth


def layernorm_backward_build(rng, N, C, add_inp, add_param, sums=True):
    def run(ops, dout, inp, w, b, di, *param):
        into = param if add_param else (None, None, None)
        found = ops.layernorm_backward(dout, inp, w, *row_statistics(inp), di if add_inp else None, into, sums)
        return found[: 3 + sums]

    def truth(dout, inp, w, b, di, dw, db, dsum):
        g = vjp(oracle.layernorm, dout, inp, w, b)
        dinp = g[0] + add_inp * di
        return [dinp, g[1] + add_param * dw, g[2] + add_param * db, dinp.sum(0) + add_param * dsum][: 3 + sums]

    # a mean of dout keeps the column sums from being what is left when all cancels
    inputs = normal(rng, N, C), rows(rng, N, C), normal(rng, C), normal(rng, C)
    return inputs + (normal(rng, N, C) + 1, *(normal(rng, C) for _ in range(3))), run, truth


@case("layernorm_backward", *ROWS)
def layernorm_backward(rng, N, C):
    return layernorm_backward_build(rng, N, C, 0, 0)


@case("layernorm_backward", *ROWS)
def layernorm_backward_add(rng, N, C):
    return layernorm_backward_build(rng, N, C, 1, 1)


@case("layernorm_backward", *ROWS[:2])
def layernorm_backward_add_inp(rng, N, C):
    return layernorm_backward_build(rng, N, C, 1, 0)


@case("layernorm_backward", *ROWS[:4])
def layernorm_backward_without_sums(rng, N, C):
    return layernorm_backward_build(rng, N, C, 1, 1, sums=False)


LINEAR = [
    (14, 48, 144),
    (1, 33, 99),
    (64, 80, 320),
    (7, 160, 5),
    (3, 1600, 48),
    (65, 96, 257),
    (1, 1, 1),
    (130, 33, 132),
]


def linear_inputs(rng, N, C, OC):
    return normal(rng, N, C), normal(rng, OC, C, scale=C**-0.5), normal(rng, OC)


@case("linear_forward", *LINEAR)
def linear_forward(rng, N, C, OC):
    return linear_inputs(rng, N, C, OC), lambda ops, *a: [ops.linear_forward(*a)], lambda *a: [linear(*a)]


@case("linear_forward", *LINEAR)
def linear_forward_without_bias(rng, N, C, OC):
    inputs = linear_inputs(rng, N, C, OC)[:2]
    return inputs, lambda ops, *a: [ops.linear_forward(*a)], lambda inp, w: [inp @ w.T]


def linear_residual_build(rng, N, C, OC, in_place):
    inputs = normal(rng, N, OC), *linear_inputs(rng, N, C, OC)
    return inputs, lambda ops, *a: [ops.linear_residual_forward(*a, in_place=in_place)], lambda r, *a: [r + linear(*a)]


@case("linear_residual_forward", *LINEAR)
def linear_residual_forward(rng, N, C, OC):
    return linear_residual_build(rng, N, C, OC, False)


@case("linear_residual_forward", *LINEAR)
def linear_residual_in_place(rng, N, C, OC):
    return linear_residual_build(rng, N, C, OC, True)


@case("linear_gelu_forward", *LINEAR)
def linear_gelu_forward(rng, N, C, OC):
    def truth(*a):
        return oracle.gelu(linear(*a)), linear(*a)

    return linear_inputs(rng, N, C, OC), lambda ops, *a: ops.linear_gelu_forward(*a), truth


@case("linear_backward_input", *LINEAR)
def linear_backward_input(rng, N, C, OC):
    inputs = normal(rng, N, OC), normal(rng, OC, C, scale=OC**-0.5)
    return inputs, lambda ops, *a: [ops.linear_backward_input(*a)], lambda dout, w: [dout @ w]


def linear_gelu_backward_build(rng, N, C, OC, add, sums=True):
    def run(ops, dout, w, pre, dsum):
        return ops.linear_gelu_backward_input(dout, w, pre, sums, dsum if add else None)[: 1 + sums]

    def truth(dout, w, pre, dsum):
        (dpre,) = vjp(lambda pre: oracle.gelu(pre) @ w.T, dout, pre)
        return [dpre, dpre.sum(0) + add * dsum][: 1 + sums]

    inputs = normal(rng, N, OC) + 1, normal(rng, OC, C, scale=OC**-0.5), normal(rng, N, C, scale=2), normal(rng, C)
    return inputs, run, truth


@case("linear_gelu_backward_input", *LINEAR)
def linear_gelu_backward_input(rng, N, C, OC):
    return linear_gelu_backward_build(rng, N, C, OC, 0)


@case("linear_gelu_backward_input", *LINEAR)
def linear_gelu_backward_input_add(rng, N, C, OC):
    return linear_gelu_backward_build(rng, N, C, OC, 1)


@case("linear_gelu_backward_input", *LINEAR[:3])
def linear_gelu_backward_input_without_sums(rng, N, C, OC):
    return linear_gelu_backward_build(rng, N, C, OC, 0, sums=False)


def linear_backward_weight_build(rng, N, C, OC, add):
    return (
        (normal(rng, N, OC), normal(rng, N, C), normal(rng, OC, C)),
        lambda ops, dout, inp, dw: [ops.linear_backward_weight(dout, inp, dw if add else None)],
        lambda dout, inp, dw: [dout.T @ inp + add * dw],
    )


@case("linear_backward_weight", *LINEAR)
def linear_backward_weight(rng, N, C, OC):
    return linear_backward_weight_build(rng, N, C, OC, 0)


@case("linear_backward_weight", *LINEAR)
def linear_backward_weight_add(rng, N, C, OC):
    return linear_backward_weight_build(rng, N, C, OC, 1)


@case("gelu_forward", (1,), (7,), (4096,), (20011,))
def gelu_forward(rng, n):
    return (normal(rng, n, scale=3),), lambda ops, x: [ops.gelu_forward(x)], lambda x: [oracle.gelu(x)]


def gelu_backward_build(rng, N, C, in_place, add=0, sums=True):
    def run(ops, dout, inp, dsum):
        return ops.gelu_backward(dout, inp, in_place, sums, dsum if add else None)[: 1 + sums]

    def truth(dout, inp, dsum):
        (dinp,) = vjp(oracle.gelu, dout, inp)
        return [dinp, dinp.sum(0) + add * dsum][: 1 + sums]

    return (normal(rng, N, C) + 1, normal(rng, N, C, scale=3), normal(rng, C)), run, truth


GELU = [(1, 1), (7, 1), (64, 64), (1, 20011), (300, 72), (33, 3072), (2051, 40)]


@case("gelu_backward", *GELU)
def gelu_backward(rng, N, C):
    return gelu_backward_build(rng, N, C, False)


@case("gelu_backward", *GELU)
def gelu_backward_in_place_add(rng, N, C):
    return gelu_backward_build(rng, N, C, True, add=1)


@case("gelu_backward", *GELU)
def gelu_backward_without_sums(rng, N, C):
    return gelu_backward_build(rng, N, C, False, sums=False)


# Head sizes 16, 11, 33, 48, 64, 80; T of one block, one more than a block, several.
ATTENTION = [
    (2, 7, 48, 3),
    (1, 1, 33, 3),
    (2, 64, 33, 1),
    (1, 65, 96, 2),
    (1, 200, 160, 2),
    (1, 33, 1600, 25),
    (2, 128, 128, 2),
    (1, 128, 64, 1),  # 64 a head and a multiple of 128 positions: Hopper has a backward of its own
    (2, 384, 192, 3),
    (5, 256, 128, 2),
]
CUDNN, OWN = 1, 2  # LLMC_ATTENTION_CUDNN, LLMC_ATTENTION_OWN


def scores_lse(qkv, NH):
    B, T, C = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, _ = qkv.reshape(B, T, 3, NH, C // NH).transpose(2, 0, 3, 1, 4).astype(np.float64)
    scores = np.where(np.tri(T, dtype=bool), q @ k.transpose(0, 1, 3, 2) / np.sqrt(C // NH), -np.inf)
    return np.log(np.exp(scores).sum(-1))


def attention_forward_build(rng, B, T, C, NH, choice):
    return (
        (normal(rng, B, T, 3 * C),),
        lambda ops, qkv: ops.attention_forward(qkv, NH, choice),
        lambda qkv: (oracle.attention(qkv, NH), scores_lse(qkv, NH)),
    )


def attention_backward_build(rng, B, T, C, NH, choice, add=0):
    def run(ops, dout, qkv, dsum):
        out, lse = oracle.attention(qkv.astype(np.float64), NH).astype(np.float32), scores_lse(qkv, NH).astype(np.float32)
        return ops.attention_backward(dout, qkv, out, lse, NH, choice, into=dsum if add else None)

    def truth(dout, qkv, dsum):
        (dqkv,) = vjp(lambda x: oracle.attention(x, NH), dout, qkv)
        return [dqkv, dqkv.sum((0, 1)) + add * dsum]

    return (normal(rng, B, T, C), normal(rng, B, T, 3 * C), normal(rng, 3 * C)), run, truth


@case("attention_forward", *ATTENTION)
def attention_forward(rng, *shape):
    return attention_forward_build(rng, *shape, 0)


@case("attention_forward", *ATTENTION)
def attention_forward_own(rng, *shape):
    return attention_forward_build(rng, *shape, OWN)


@case("attention_backward", *ATTENTION)
def attention_backward(rng, *shape):
    return attention_backward_build(rng, *shape, 0)


@case("attention_backward", *ATTENTION)
def attention_backward_own(rng, *shape):
    return attention_backward_build(rng, *shape, OWN)


@case("attention_backward", *ATTENTION)
def attention_backward_adding_sums(rng, *shape):
    return attention_backward_build(rng, *shape, 0, add=1)


@case("attention_decode", (2, 7, 48, 3, 6), (1, 1, 33, 3, 0), (3, 200, 96, 2, 150), (1, 40, 1600, 25, 8))
def attention_decode(rng, rows, T, C, NH, position):
    def truth(cache, qkv):
        cache = cache.copy()
        cache[:, position] = qkv
        return oracle.attention(cache[:, : position + 1], NH)[:, -1], cache

    inputs = normal(rng, rows, T, 3 * C), normal(rng, rows, 3 * C)
    return inputs, lambda ops, cache, qkv: ops.attention_decode(cache, qkv, position, NH), truth


def classifier_build(rng, rows, V, Vp, write):
    targets = rng.integers(0, V, rows, dtype=np.int32)
    dloss = 1.0 / 64  # exact in bf16, and a power of two keeps the comparison about the softmax

    def run(ops, logits, targets):
        padded = np.full((rows, Vp), np.nan, np.float32)  # what must not be touched
        padded[:, :V] = logits
        losses, padded = ops.classifier(padded, targets, dloss, V, write)
        assert np.isnan(padded[:, V:]).all()
        return losses, padded[:, :V].copy()

    def truth(logits, targets):
        logp = oracle.log_softmax(logits)
        losses = -logp[np.arange(rows), targets]
        dlogits = np.exp(logp)
        dlogits[np.arange(rows), targets] -= 1
        return losses, dlogits * dloss if write else logits

    return (normal(rng, rows, V, scale=4), targets), run, truth


CLASSIFIER = [(7, 257, 384), (1, 5, 128), (64, 1, 128), (3, 50257, 50304), (5, 128, 128), (420, 16389, 16512)]


@case("classifier", *CLASSIFIER)
def classifier(rng, rows, V, Vp):
    return classifier_build(rng, rows, V, Vp, True)


@case("classifier", *CLASSIFIER)
def classifier_loss_only(rng, rows, V, Vp):
    return classifier_build(rng, rows, V, Vp, False)


@case("mean_loss", (1, 0), (7, 1), (4096, 0), (5000, 1))
def mean_loss(rng, N, add):
    inputs = (np.abs(normal(rng, N)),)
    return (
        inputs,
        lambda ops, x: [ops.mean_loss(x, 1 / N, 0.5 if add else None)],
        lambda x: [x.mean() + 0.5 * add],
    )


@case("global_norm_squared", (1,), (1000,), (100003,))
def global_norm_squared(rng, n):
    return (normal(rng, n),), lambda ops, x: [ops.global_norm_squared(x)], lambda x: [(x**2).sum()]


# -- the two comparisons -------------------------------------------------------------------------------


def inputs_of(build, shape, rounded=False):
    rng = np.random.default_rng(sum(shape))
    inputs, run, truth = build(rng, *shape)
    if rounded:
        inputs = [round_bf16(x) if x.dtype == np.float32 else x for x in inputs]
    return inputs, run, truth


def widened(inputs):
    return [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]


# Three threads and rows that start between cache lines: the slices of odd layers do.
@pytest.mark.parametrize(
    "options", [{}, {"threads": 3, "misaligned": 1}, {"threads": 1}], ids=["plain", "odd", "single"]
)
@pytest.mark.parametrize("op, build, shape", CASES)
def test_cpu_against_float64(op, build, shape, options):
    inputs, run, truth = inputs_of(build, shape)
    check(op, run(Ops("cpu", **options), *inputs), truth(*widened(inputs)), "cpu")


@pytest.fixture(scope="module")
def cuda_ops():
    path = library_path("cuda")
    if not path.exists():
        pytest.skip(f"no {path.name} (make harness builds it)")
    ops = Ops("cuda")
    try:
        count = ops.device_count()
    except OpError as e:
        pytest.skip(f"no CUDA device: {e}")
    if count == 0:
        pytest.skip("no CUDA device")
    return ops


CUDA_MODES = [("fp32", 0), ("fp32", 1), ("bf16", 0), ("bf16", 1)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, misaligned", CUDA_MODES)
@pytest.mark.parametrize("op, build, shape", CASES)
def test_cuda_against_cpu(cuda_ops, op, build, shape, dtype, misaligned):
    inputs, run, _ = inputs_of(build, shape, rounded=dtype == "bf16")
    got = run(Ops("cuda", dtype, misaligned=misaligned), *inputs)
    check(op, got, run(Ops("cpu"), *inputs), "bf16" if dtype == "bf16" else "cuda")


# One row, fewer than a tile, an odd number of tiles, several tiles a block; inner lengths that end within a block.
OWN_GELU = [(1, 64, 64), (77, 64, 320), (200, 128, 768), (385, 832, 64), (1000, 3072, 72), (4096, 3072, 768)]


@pytest.mark.gpu
@pytest.mark.parametrize("N, C, OC", OWN_GELU)
def test_own_gelu_products(cuda_ops, N, C, OC):
    """The products that tuning may choose, chosen or not."""
    rng, own, cpu = np.random.default_rng(N), Ops("cuda", "bf16"), Ops("cpu")
    inp, b, dout = (round_bf16(normal(rng, *shape)) for shape in ((N, C), (OC,), (N, OC)))
    w, pre = round_bf16(normal(rng, OC, C, scale=C**-0.5)), round_bf16(normal(rng, N, C, scale=2))
    for bias in (b, None):
        found = own.own_gelu_forward(inp, w, bias)
        if found is None:
            pytest.skip("this device has no such product")
        check("linear_gelu_forward", found, cpu.linear_gelu_forward(inp, w, bias), "bf16")
    for sums in (True, False):
        found, again = (own.own_gelu_backward(dout, w, pre, sums)[: 1 + sums] for _ in range(2))
        check("linear_gelu_backward_input", found, cpu.linear_gelu_backward_input(dout, w, pre, sums)[: 1 + sums], "bf16")
        assert all((a == b).all() for a, b in zip(found, again, strict=True))


@pytest.mark.gpu
def test_kernels_take_the_places_of_small_memsets(cuda_ops):
    """The same bytes in the same order; the one of 1,025 bytes stays."""
    before = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    wanted = before.copy()
    wanted[3000:3004] = 1
    for first, count, value in ((0, 4, 1), (0, 3, 2), (2, 1024, 3), (1000, 1025, 4), (2024, 2, 255)):
        wanted[first : first + count] = value
    for replace, left in ((0, 5), (1, 1)):
        found, memsets = Ops("cuda").graph_memsets(before, replace)
        assert (found == wanted).all() and memsets == left


def both(test):
    """Runs a test on the CPU, and where there is a device on CUDA in both types."""
    modes = [pytest.param("cpu", "fp32")]
    modes += [pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in ("fp32", "bf16")]
    return pytest.mark.parametrize("backend, dtype", modes)(test)


@pytest.fixture
def ops(request, backend, dtype):
    if backend == "cuda":
        request.getfixturevalue("cuda_ops")
    return Ops(backend, dtype)


# -- what single values must be ------------------------------------------------------------------------


@both
def test_gelu_is_exact_where_it_bends(ops, dtype):
    x = np.arange(-10, 10, 1e-3, dtype=np.float32)
    if dtype == "bf16":
        x = round_bf16(x)
    wide = x.astype(np.float64)
    forward, backward = ops.gelu_forward(x), ops.gelu_backward(np.ones_like(x)[None], x[None])[0][0]
    truth = oracle.gelu(wide), vjp(oracle.gelu, np.ones_like(wide), wide)[0]
    for got, true in zip((forward, backward), truth, strict=True):
        limit = 1e-6 if dtype == "fp32" else 1e-6 + np.abs(true) / 256
        assert (np.abs(got - true) < limit).all()


@both
def test_nan_and_infinity_survive(ops):
    x = np.array([np.nan, 1, np.inf, -1, 0, 2, 3, 4], np.float32)
    assert np.isnan(ops.gelu_forward(x)[0]) and np.isfinite(ops.gelu_forward(x)[[1, 3, 4]]).all()
    for bad in (np.nan, np.inf):
        for V, Vp in ((100, 128), (20001, 20096)):
            logits = np.zeros((3, Vp), np.float32)
            logits[1, 70] = bad
            losses, _ = ops.classifier(logits, np.zeros(3, np.int32), 1.0, V)
            assert np.isfinite(losses[[0, 2]]).all() and not np.isfinite(losses[1])
        assert not np.isfinite(ops.global_norm_squared(np.array([1, bad, 2], np.float32)))


@pytest.mark.parametrize("V, Vp", [(100, 128), (20001, 20096)])
@both
def test_classifier_large_logits(ops, V, Vp):
    logits = np.full((2, Vp), -np.inf, np.float32)
    logits[0, :3], logits[1, :3] = (1000, 992, 0), (-1000, -1000, -1000)  # all of them bf16 values
    losses, dlogits = ops.classifier(logits, np.zeros(2, np.int32), 1.0, V)
    np.testing.assert_allclose(losses, [np.log1p(np.exp(-8.0)), np.log(3)], rtol=1e-2)
    assert np.isfinite(dlogits[:, :V]).all() and (dlogits[:, 3:V] == 0).all()


@both
def test_scores_beyond_exp(ops):
    """Attention with scores of some hundreds: only the difference to the largest may be exponentiated."""
    qkv = round_bf16(normal(np.random.default_rng(1), 1, 70, 3 * 32, scale=20))
    out, lse = ops.attention_forward(qkv, 2)
    assert error(out, oracle.attention(qkv.astype(np.float64), 2)) < 0.02
    assert np.isfinite(lse).all() and lse.max() > 200


@both
def test_decode_is_the_last_row_of_forward(ops):
    qkv = round_bf16(normal(np.random.default_rng(2), 2, 70, 3 * 48))
    full, _ = ops.attention_forward(qkv, 3)
    for position in (0, 1, 63, 69):
        cache = qkv.copy()
        cache[:, position:] = np.nan  # later keys must not be read
        out, _ = ops.attention_decode(cache, np.ascontiguousarray(qkv[:, position]), position, 3)
        assert error(out, full[:, position]) < 0.02


@both
def test_repeats_bit_for_bit(ops):
    rng = np.random.default_rng(3)
    dout, qkv = round_bf16(normal(rng, 2, 65, 96)), round_bf16(normal(rng, 2, 65, 3 * 96))
    tokens = rng.integers(0, 7, (2, 65), dtype=np.int32)
    dwte, grads = np.zeros((128, 96), np.float32), normal(rng, 300001)
    stats = row_statistics(dout[0])

    def once():
        out, lse = ops.attention_forward(qkv, 2)
        return [
            *ops.attention_backward(dout, qkv, out, lse, 2),
            *ops.embedding_backward(dwte, dout, tokens, 7, 70),
            *ops.layernorm_backward(dout[1], dout[0], dout[0, 0], *stats),
            ops.linear_backward_weight(qkv[0], dout[0]),
            np.array(ops.global_norm_squared(grads)),
        ]

    first = once()
    for _ in range(3):
        for a, b in zip(first, once(), strict=True):
            np.testing.assert_array_equal(a, b)


# -- update --------------------------------------------------------------------------------------------

CONFIG = {"context": 5, "vocab": 5, "layers": 2, "heads": 3, "channels": 33}
DECAYED = [0, 1, 4, 6, 10, 12]


def hyper(**changes):
    values = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
    h = ffi.new("llmc_hyper *")
    for name, value in {**values, **changes}.items():
        setattr(h, name, value)
    return h


def record(clip_scale=0.5, skipped=0):
    r = ffi.new("llmc_step_result *")
    r.clip_scale, r.skipped = clip_scale, skipped
    return r


def adamw_problem(ops):
    rng = np.random.default_rng(4)
    config = ffi.new("llmc_config *", CONFIG)
    offset, count, total = ops.layout(config)
    inside = np.zeros(total, bool)
    decay = np.zeros(total)
    for i, (o, n) in enumerate(zip(offset, count, strict=True)):
        inside[o : o + n] = True
        decay[o : o + n] = 0.1 * (i in DECAYED)
    values = [normal(rng, total), normal(rng, total, scale=0.1), normal(rng, total) ** 2, normal(rng, total)]
    return config, inside, decay, [round_bf16(v) * inside for v in values]


def adamw_truth(p, m, v, g, decay, h, clip):
    p, m, v, g = (x.astype(np.float64) for x in (p, m, v, g))
    g = g * clip
    m = h.beta1 * m + (1 - h.beta1) * g
    v = h.beta2 * v + (1 - h.beta2) * g * g
    m_hat, v_hat = m / (1 - h.beta1**h.step), v / (1 - h.beta2**h.step)
    return p - h.learning_rate * (m_hat / (np.sqrt(v_hat) + h.eps) + decay * p), m, v


@both
@pytest.mark.parametrize("with_master", [False, True])
def test_adamw(ops, dtype, with_master):
    config, inside, decay, (p, m, v, g) = adamw_problem(ops)
    h, master = hyper(), None
    if with_master:  # the truth is the master copy, whatever the parameters say
        master, p = p, np.float32(7) * inside
    got = ops.adamw(p, m, v, g, config, h, record(), master)
    true = adamw_truth(p if master is None else master, m, v, g, decay, h, 0.5)
    check("adamw", [got[0]], true[:1], "cpu" if dtype == "fp32" else "bf16")
    check("adamw", got[2:], true[1:], "cpu")
    if with_master:
        check("adamw", [got[1]], true[:1], "cpu")
    for after in got:
        assert after is None or not after[~inside].any(), "the gaps between tensors must stay zero"


@both
def test_adamw_skipped_changes_nothing(ops):
    config, _, _, (p, m, v, g) = adamw_problem(ops)
    got = ops.adamw(p, m, v, g * np.nan, config, hyper(), record(skipped=1), p.copy())
    for after, before in zip(got, (p, p, m, v), strict=True):
        np.testing.assert_array_equal(after, before)


@both
def test_adamw_decays_matrices_only(ops):
    """Gradients 0, rate 0.1, decay 0.1: matrices times 0.99, gains and biases as they were."""
    config, inside, decay, (p, m, _, _) = adamw_problem(ops)
    zero = m * 0
    _, master, _, _ = ops.adamw(p, zero, zero, zero, config, hyper(learning_rate=0.1), record(1.0), p.copy())
    np.testing.assert_array_equal(master[decay == 0], p[decay == 0])
    np.testing.assert_allclose(master[decay > 0], p[decay > 0] * np.float32(0.99), rtol=2e-7)


@pytest.mark.gpu
def test_stochastic_rounding_is_unbiased(cuda_ops):
    """Updates of a thousandth of a bf16 step move the mean by as much; bits repeat with the seed only."""
    ops = Ops("cuda", "bf16")
    config, inside, _, (p, m, v, g) = adamw_problem(ops)
    p, zero, g = np.where(inside, np.float32(1.5), np.float32(0)), m * 0, inside.astype(np.float32)
    h = hyper(learning_rate=1e-3, weight_decay=0.0, step=1)  # m_hat / sqrt(v_hat) is 1: p becomes 1.499

    def update(seed):
        return ops.adamw(p, zero, zero, g, config, h, record(1.0), rounding=seed)[0]

    once = update(1)
    np.testing.assert_array_equal(once, update(1))
    assert (once != update(2)).any()
    step = 2.0**-7
    assert set(np.unique(once[inside])) <= {1.5, 1.5 - step}
    n, chance = inside.sum(), 1e-3 / step
    assert abs((once[inside] < 1.5).mean() - chance) < 5 * np.sqrt(chance / n)


@both
def test_round_trip(ops, dtype):
    x = normal(np.random.default_rng(5), 1001)
    x[:6] = [0, -0.0, np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 3e-39]  # two ties, a subnormal
    np.testing.assert_array_equal(ops.round_trip(x), x if dtype == "fp32" else round_bf16(x))
    assert np.isnan(ops.round_trip(np.array([np.nan], np.float32))[0])


@both
def test_gate(ops):
    guard = ffi.new("llmc_guard *")
    h = hyper(grad_clip=1.0, max_loss_z=4.0, max_norm_z=4.0)
    rng = np.random.default_rng(6)
    r = ops.gate(guard, h, 3.0, 4.0, ticket=9)
    assert (r.ticket, r.loss, r.grad_norm, r.clip_scale, r.skipped) == (9, 3.0, 2.0, 0.5, 0)
    assert np.isnan(r.loss_z) and guard.loss_seen == 1
    for bad in (np.nan, np.inf):
        assert ops.gate(guard, h, bad, 1.0).skipped == 1 and ops.gate(guard, h, 1.0, bad).skipped == 1
    assert (guard.loss_seen, guard.norm_seen) == (3, 3), "a non-finite value must not enter the rings"
    for _ in range(130):
        r = ops.gate(guard, h, 3 + 0.1 * rng.standard_normal(), 0.25)
    ring = np.frombuffer(ffi.buffer(guard.loss), np.float32).astype(np.float64)
    np.testing.assert_allclose(r.loss_z, (r.loss - ring.mean()) / ring.std(), rtol=1e-4)
    assert r.skipped == 0 and r.clip_scale == 1.0
    assert ops.gate(guard, h, 1e6, 0.25).skipped == 2
    assert ops.gate(guard, h, 3.0, 1e12).skipped == 3


# -- refusals ------------------------------------------------------------------------------------------


@both
def test_memory_that_is_not_there(ops):
    with pytest.raises(OpError, match=r"\d{15,}.*\d"):
        ops.device_alloc(10**15)


@pytest.mark.gpu
def test_both_backwards_agree_where_blocks_go_in_pairs(cuda):
    """A multiprocessor takes blocks of rows in pairs once there are several for each: more than an oracle can do."""
    ops, rng = Ops(cuda, "bf16"), np.random.default_rng(4)
    qkv, dout = round_bf16(normal(rng, 2, 640, 3 * 90 * 64)), round_bf16(normal(rng, 2, 640, 90 * 64))
    out, lse = ops.attention_forward(qkv, 90)
    (own, own_sums), (library, sums) = (ops.attention_backward(dout, qkv, out, lse, 90, choice) for choice in (OWN, CUDNN))
    assert error(own, library) < 0.01 and error(own_sums, sums) < 0.01
    assert error(own_sums, own.astype(np.float64).sum((0, 1))) < 0.003


@both
def test_attention_prepare_says_when_it_falls_back(ops, backend):
    note = ops.attention_prepare(1, 16, 48, 3, choice=1)
    assert ("CPU" in note) if backend == "cpu" else isinstance(note, str)
    assert ops.attention_prepare(1, 16, 48, 3, choice=OWN) == ""


def test_decode_outside_the_cache_is_refused():
    with pytest.raises(OpError, match="position 7"):
        Ops("cpu").attention_decode(np.zeros((1, 7, 9), np.float32), np.zeros((1, 9), np.float32), 7, 1)


def test_the_comparison_sees_one_wrong_element():
    rng = np.random.default_rng(7)
    inputs, run, truth = layernorm_forward(rng, 14, 48)
    got = [x.copy() for x in run(Ops("cpu"), *inputs)]
    got[0][3, 5] *= 1.0001
    with pytest.raises(AssertionError, match="off by"):
        check("layernorm_forward", got, truth(*widened(inputs)), "cpu")
    got[0][3, 5] = np.nan
    with pytest.raises(AssertionError, match="off by inf"):
        check("layernorm_forward", got, truth(*widened(inputs)), "cpu")

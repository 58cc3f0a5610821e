"""What each op of a step has to do: floating-point operations and bytes of device memory.

FLOPs are those of matrix products and attention, two for each multiply-add; element-wise arithmetic isn't
counted, such ops are bound by memory. Bytes are compulsory traffic: every operand of ops.h read once, every
result written once, as if caches held nothing from the op before and everything within it. So neither depends
on how an op is implemented, and (work / ceiling) is a floor that no implementation gets below, except where
an operand is still in a cache. Ops that the switches fuse differently are counted alike.

Names: N = B T rows, X the width in bytes of parameters, gradients and activations.
"""

from collections import Counter
from dataclasses import dataclass, replace

from .. import options

FP32 = 4
PRODUCT, ATTENTION, NORM, CLASSIFIER, EMBEDDING, UPDATE, COPY = KINDS = (
    "matrix product", "attention", "norm, GELU", "classifier", "embedding", "update", "copy",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """Of one call: FLOPs and bytes of device memory, None where they have no settled number."""

    flops: float | None = None
    bytes: float | None = None


@dataclass(frozen=True)
class Shape:
    """What the costs depend on. params: P, with padding. rows: of one piece of the head. width: X. master: whether
    AdamW updates fp32 master weights. distinct: different tokens in a micro-batch."""

    B: int
    T: int
    C: int
    NH: int
    V: int
    Vp: int
    params: int
    rows: int
    width: int
    master: bool
    distinct: int

    @property
    def N(self):
        return self.B * self.T

    @classmethod
    def of(cls, config, engine, distinct):
        """The Shape of a GPT2Config with these llmc_options (as GPT2.options)."""
        bf16 = options.word_of("precision", engine.precision) == "bf16"
        N = engine.batch * engine.seq_len
        return cls(
            engine.batch, engine.seq_len, config.channels, config.heads, config.vocab, config.padded_vocab,
            config.num_params, -(-N // engine.head_chunks), 2 if bf16 else FP32,
            bool(bf16 and engine.master_weights), min(distinct, N),
        )  # fmt: skip


def _linear(rows, C, OC, s, bias=True, extra=0):
    """out (rows,OC) = inp (rows,C) w (OC,C)^T + b, or one of its two gradients, which move the same operands:
    2 rows C OC FLOP. extra: more values read or written."""
    return Work(2 * rows * C * OC, s.width * (rows * C + rows * OC + C * OC + (OC if bias else 0) + extra))


def _weight(rows, C, OC, s, adds):
    """dw into= dout^T inp: adding reads the old gradient too."""
    return _linear(rows, C, OC, s, bias=False, extra=OC * C if adds else 0)


def _elements(s, per_row, *, statistics=0, vectors=0):
    """Bytes of `per_row` tensors (N,C), fp32 `statistics` of N values, and `vectors` of C values."""
    return Work(None, s.width * (per_row * s.N * s.C + vectors * s.C) + FP32 * statistics * s.N)


def _attention_flops(s):
    """Of one of attention's products: each query meets the keys up to its own, (T + 1) / 2 on average."""
    return s.N * s.C * (s.T + 1)


def _norm_backward(s, adds_input, adds_weight):
    """dinp into= from dout, inp and two statistics; gain read, dw, db and the sums of dinp into=."""
    return _elements(s, 4 if adds_input else 3, statistics=2, vectors=7 if adds_weight else 4)


def _adamw(s):
    """Gradient and both moments read, both moments and the parameter written; with fp32 masters those are read
    and written too, while the parameters themselves are only written."""
    truth = 2 * FP32 if s.master else s.width
    return Work(None, s.params * (s.width + truth + s.width + 4 * FP32))


@dataclass(frozen=True)
class Op:
    """kind: of KINDS. work: Work from (Shape, whether gradients are added to), or None without a known cost."""

    kind: str
    work: object = None


OPS = {
    "embedding": Op(EMBEDDING, lambda s, adds: Work(None, s.width * s.C * (s.distinct + s.T + s.N) + FP32 * s.N)),
    # dout read; the touched rows of dwte read and written; T rows of dwpe written, and read when adding
    "embedding bwd": Op(EMBEDDING, lambda s, adds: Work(
        None, s.width * s.C * (s.N + 2 * s.distinct + (2 if adds else 1) * s.T) + FP32 * s.N)),
    "layernorm 1": Op(NORM, lambda s, adds: _elements(s, 2, statistics=2, vectors=2)),
    "layernorm 2": Op(NORM, lambda s, adds: _elements(s, 2, statistics=2, vectors=2)),
    "final norm": Op(NORM, lambda s, adds: _elements(s, 2, statistics=2, vectors=2)),
    "norm 1 again": Op(NORM, lambda s, adds: _elements(s, 2, statistics=2, vectors=2)),
    "norm 2 again": Op(NORM, lambda s, adds: _elements(s, 2, statistics=2, vectors=2)),
    "gelu again": Op(NORM, lambda s, adds: _elements(s, 8)),
    "final norm bwd": Op(NORM, lambda s, adds: _norm_backward(s, False, adds)),
    "norm 1 bwd": Op(NORM, lambda s, adds: _norm_backward(s, True, adds)),
    "norm 2 bwd": Op(NORM, lambda s, adds: _norm_backward(s, True, adds)),
    "qkv": Op(PRODUCT, lambda s, adds: _linear(s.N, s.C, 3 * s.C, s)),
    # the residual is added in the product
    "attproj": Op(PRODUCT, lambda s, adds: _linear(s.N, s.C, s.C, s, extra=s.N * s.C)),
    # GELU's input is kept for the backward pass, so both it and GELU's output are written
    "fc": Op(PRODUCT, lambda s, adds: _linear(s.N, s.C, 4 * s.C, s, extra=4 * s.N * s.C)),
    "fcproj": Op(PRODUCT, lambda s, adds: _linear(s.N, 4 * s.C, s.C, s, extra=s.N * s.C)),
    "qkv dinput": Op(PRODUCT, lambda s, adds: _linear(s.N, s.C, 3 * s.C, s, bias=False)),
    "attproj dinput": Op(PRODUCT, lambda s, adds: _linear(s.N, s.C, s.C, s, bias=False)),
    "fc dinput": Op(PRODUCT, lambda s, adds: _linear(s.N, s.C, 4 * s.C, s, bias=False)),
    # times gelu'(pre), so GELU's input is read; the sums of the result are fc's bias gradient
    "fcproj dinput": Op(PRODUCT, lambda s, adds: _linear(
        s.N, 4 * s.C, s.C, s, bias=False, extra=4 * s.N * s.C + (8 if adds else 4) * s.C)),
    "qkv dweight": Op(PRODUCT, lambda s, adds: _weight(s.N, s.C, 3 * s.C, s, adds)),
    "attproj dweight": Op(PRODUCT, lambda s, adds: _weight(s.N, s.C, s.C, s, adds)),
    "fc dweight": Op(PRODUCT, lambda s, adds: _weight(s.N, s.C, 4 * s.C, s, adds)),
    "fcproj dweight": Op(PRODUCT, lambda s, adds: _weight(s.N, 4 * s.C, s.C, s, adds)),
    # forward: scores and mixing. qkv read, out and one fp32 a row and head written
    "attention": Op(ATTENTION, lambda s, adds: Work(
        2 * _attention_flops(s), s.width * 4 * s.N * s.C + FP32 * s.N * s.NH)),
    # five products, for the scores are made again: Dao, FlashAttention-2 (2023), section 4.1. dout, out, qkv
    # read, dqkv written, and qkv's bias gradient with it
    "attention bwd": Op(ATTENTION, lambda s, adds: Work(
        5 * _attention_flops(s), s.width * (8 * s.N * s.C + (6 if adds else 3) * s.C) + FP32 * s.N * s.NH)),
    "logits": Op(PRODUCT, lambda s, adds: _linear(s.rows, s.C, s.Vp, s, bias=False)),
    "dlnf": Op(PRODUCT, lambda s, adds: _linear(s.rows, s.C, s.Vp, s, bias=False)),
    "dwte": Op(PRODUCT, lambda s, adds: _weight(s.rows, s.C, s.Vp, s, adds)),
    # logits read, their gradient written over them; targets read, losses written
    "classifier": Op(CLASSIFIER, lambda s, adds: Work(None, s.rows * (2 * s.V * s.width + 2 * FP32))),
    "mean loss": Op(CLASSIFIER, lambda s, adds: Work(None, FP32 * s.N)),
    "gradient norm": Op(UPDATE, lambda s, adds: Work(None, s.width * s.params)),
    "adamw": Op(UPDATE, lambda s, adds: _adamw(s)),
    # No settled number: a few hundred bytes, a sort, and copies that cross the bus and not the device's memory.
    "gate": Op(UPDATE), "token index": Op(EMBEDDING),
    "upload inputs": Op(COPY), "upload targets": Op(COPY), "download result": Op(COPY),
}  # fmt: skip


def kind_of(name):
    """The kind of a span's op, None for a name that isn't in the table."""
    return OPS[name].kind if name in OPS else None


def step_work(shape, spans, micro_steps):
    """{name: Work of all its calls in a step}. spans: of a whole step of so many micro-steps.

    The first micro-step assigns the gradients, later ones add to them; within it dwte is added to from the
    head's second piece on.
    """
    pieces = [min(shape.rows, shape.N - row) for row in range(0, shape.N, shape.rows)]
    total = {}
    for (name, _), count in Counter((span.name, span.layer) for span in spans).items():
        work = OPS[name].work if name in OPS else None
        done = []
        for call in range(count if work else 0):
            micro, piece = divmod(call, max(1, count // micro_steps))
            adds = micro > 0 or (name == "dwte" and piece > 0)
            done.append(work(replace(shape, rows=pieces[piece % len(pieces)]), adds))
        total[name] = _sum([*done, *([total[name]] if name in total else [])])
    return total


def _sum(works):
    """A Work of what its parts add up to; a number that no part has is None."""
    flops = [work.flops for work in works if work.flops is not None]
    moved = [work.bytes for work in works if work.bytes is not None]
    return Work(sum(flops) if flops else None, sum(moved) if moved else None)

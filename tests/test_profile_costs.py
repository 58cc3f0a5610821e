"""The work of each op: by hand, by the whole step's formula, and for every span that the engine has."""

import re
from pathlib import Path

import pytest

from pyllmc import GPT2, GPT2Config
from pyllmc.flops import flops_per_token
from pyllmc.profile.op_costs import COPY, KINDS, OPS, Shape, Work, step_work
from pyllmc.profile.record import Runner

ENGINE = Path(__file__).resolve().parents[1] / "llmc"
# B=2, T=4: 8 rows; C=6, NH=2, V=10 padded to 128, 1000 parameters, bf16 with masters, 5 different tokens
SMALL = Shape(2, 4, 6, 2, 10, 128, 1000, 8, 2, True, 5)
CONFIG = GPT2Config(layers=2, heads=2, channels=16, vocab=50, context=32)


@pytest.mark.parametrize(
    "name, adds, flops, moved",
    [
        ("qkv", False, 2 * 8 * 6 * 18, 2 * (8 * 6 + 8 * 18 + 6 * 18 + 18)),
        ("qkv dinput", False, 2 * 8 * 6 * 18, 2 * (8 * 6 + 8 * 18 + 6 * 18)),
        ("qkv dweight", False, 2 * 8 * 6 * 18, 2 * (8 * 6 + 8 * 18 + 6 * 18)),
        ("qkv dweight", True, 2 * 8 * 6 * 18, 2 * (8 * 6 + 8 * 18 + 2 * 6 * 18)),
        ("fc", False, 2 * 8 * 6 * 24, 2 * (8 * 6 + 2 * 8 * 24 + 6 * 24 + 24)),
        ("fc dweight", False, 2 * 8 * 6 * 24, 2 * (8 * 6 + 8 * 24 + 6 * 24)),
        ("fcproj", False, 2 * 8 * 6 * 24, 2 * (8 * 24 + 2 * 8 * 6 + 6 * 24 + 6)),
        ("fcproj dinput", False, 2 * 8 * 6 * 24, 2 * (2 * 8 * 24 + 8 * 6 + 6 * 24 + 24)),
        ("fcproj dinput", True, 2 * 8 * 6 * 24, 2 * (2 * 8 * 24 + 8 * 6 + 6 * 24 + 2 * 24)),
        ("logits", False, 2 * 8 * 6 * 128, 2 * (8 * 6 + 8 * 128 + 6 * 128)),
        # 10 pairs of positions in a row of 4; two products of 2 x 3 channels a pair, 2 rows, 2 heads
        ("attention", False, 2 * 2 * 3 * 10 * 2 * 2, 2 * 4 * 48 + 4 * 8 * 2),
        ("attention bwd", False, 5 * 2 * 3 * 10 * 2 * 2, 2 * (8 * 48 + 18) + 4 * 8 * 2),
        ("attention bwd", True, 5 * 2 * 3 * 10 * 2 * 2, 2 * (8 * 48 + 2 * 18) + 4 * 8 * 2),
        ("classifier", False, None, 8 * (10 * 2 * 2 + 8)),
        ("layernorm 1", False, None, 2 * (2 * 48 + 2 * 6) + 4 * 16),
        ("layernorm 2", False, None, 2 * (2 * 48 + 2 * 6) + 4 * 16),
        ("norm 1 bwd", False, None, 2 * (4 * 48 + 4 * 6) + 4 * 16),
        ("norm 1 bwd", True, None, 2 * (4 * 48 + 7 * 6) + 4 * 16),
        ("final norm bwd", False, None, 2 * (3 * 48 + 4 * 6) + 4 * 16),
        ("gelu again", False, None, 2 * 8 * 48),
        ("embedding", False, None, 2 * 6 * (5 + 4 + 8) + 32),
        ("embedding bwd", False, None, 2 * 6 * (8 + 10 + 4) + 32),
        ("gradient norm", False, None, 2000),
        ("adamw", False, None, 28 * 1000),
    ],
)  # fmt: skip
def test_by_hand(name, adds, flops, moved):
    assert OPS[name].work(SMALL, adds) == Work(flops, moved)


def test_adamw_without_masters():
    for width, bytes_each in ((2, 22), (4, 28)):
        shape = Shape(2, 4, 6, 2, 10, 128, 1000, 8, width, False, 5)
        assert OPS["adamw"].work(shape, False).bytes == 1000 * bytes_each


def test_every_span_of_the_source_has_an_entry_and_none_is_left_over():
    names = set()
    for path in (ENGINE / "train_gpt2.cu", ENGINE / "batch_ring.cpp"):
        names |= set(re.findall(r"\.span\(\w+, \"([^\"]+)\"", path.read_text()))
    assert len(names) > 30 and names == OPS.keys()
    assert {op.kind for op in OPS.values()} == set(KINDS)


def recorded(recompute=0, head_chunks=1, micro_steps=1):
    with GPT2.from_config(CONFIG, batch=2, seq_len=16, device="cpu", recompute=recompute, head_chunks=head_chunks) as model:
        runner = Runner(model, micro_steps)
        runner.run(1)
        spans = runner.record()
        return spans, Shape.of(CONFIG, model.options, runner.distinct_tokens)


def test_every_span_of_a_recorded_step_has_an_entry():
    seen = {span.name for level in (0, 1, 2) for span in recorded(level)[0]}
    assert seen == OPS.keys()
    assert {name for name, op in OPS.items() if op.work is None} == {
        "gate", "token index", *(name for name, op in OPS.items() if op.kind == COPY),
    }  # fmt: skip


def test_flops_of_a_step_are_those_of_the_formula():
    """6 N + 6 L C T a token, and what it leaves out: a query's own key, and the scores that backward makes again."""
    spans, shape = recorded()
    found = sum(work.flops or 0 for work in step_work(shape, spans, 1).values())
    N, C, L, T = shape.N, shape.C, CONFIG.layers, shape.T
    assert found == N * flops_per_token(CONFIG, T) + N * 6 * L * C + N * L * C * (T + 1)


@pytest.mark.parametrize("chunks", [1, 3, 5])
def test_a_head_in_pieces_does_the_same_products(chunks):
    spans, shape = recorded(head_chunks=chunks)
    work, whole = step_work(shape, spans, 1), step_work(recorded()[1], recorded()[0], 1)
    for name in ("logits", "dlnf", "dwte", "classifier"):
        assert work[name].flops == whole[name].flops
    assert work["classifier"].bytes == whole["classifier"].bytes
    weights = shape.width * shape.Vp * shape.C
    assert work["logits"].bytes == whole["logits"].bytes + (chunks - 1) * weights
    assert work["dwte"].bytes == whole["dwte"].bytes + 2 * (chunks - 1) * weights  # read and written for each piece


def test_later_micro_steps_add_to_the_gradients():
    spans, shape = recorded(micro_steps=3)
    work, single = step_work(shape, spans, 3), step_work(*reversed(recorded()), 1)
    assert work["qkv"] == Work(3 * single["qkv"].flops, 3 * single["qkv"].bytes)
    read_again = 2 * CONFIG.layers * shape.width * 3 * shape.C * shape.C
    assert work["qkv dweight"].bytes == 3 * single["qkv dweight"].bytes + read_again
    assert work["adamw"] == single["adamw"]


def test_an_unknown_op_has_no_work():
    from pyllmc.inspection import Span

    assert step_work(SMALL, [Span("new", "compute", 0, 0.0, 1.0)], 1) == {"new": Work()}

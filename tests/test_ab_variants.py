"""Sides in words, and whether their losses agree."""

import math

import pytest

from pyllmc.ab import losses
from pyllmc.ab.reference import read_output
from pyllmc.ab.variants import SWITCHES, Variant, parse_sweep, parse_variant
from pyllmc.errors import InvalidArgument


@pytest.mark.parametrize(
    "text, expected",
    [("", Variant("")), ("  ", Variant("")),
     ("streams=1 graph=off", Variant("streams=1 graph=off", {"streams": 1, "graph": 0})),
     ("streams=1,graph=on", Variant("streams=1,graph=on", {"streams": 1, "graph": 1})),
     ("prefetch=off attention=own precision=fp32",
      Variant("prefetch=off attention=own precision=fp32", {"prefetch": "off", "attention": "own", "precision": "fp32"})),
     ("prefetch=3", Variant("prefetch=3", {"prefetch": 3})),
     ("lr=1e-3 weight_decay=0.1", Variant("lr=1e-3 weight_decay=0.1", {}, {"learning_rate": 1e-3, "weight_decay": 0.1})),
     ("lag=0 b=8", Variant("lag=0 b=8", {"batch": 8}, lag=0)),
     ("library='a b.so'", Variant("library='a b.so'", library="a b.so")),
     ("reference:./train gpt2cu", Variant("reference:./train gpt2cu", binary="./train gpt2cu"))],
)  # fmt: skip
def test_words(text, expected):
    assert parse_variant(text) == expected


@pytest.mark.parametrize(
    "text, part",
    [("steams=1", "did you mean 'streams'"), ("streams", "expected NAME=VALUE"), ("streams=", "expected NAME=VALUE"),
     ("streams=1 streams=4", "given twice"), ("prefetch=hots", "did you mean 'host'"), ("graph=maybe", "a number, on or off"),
     ("device=1", "no switch is called 'device'"), ("world=2", "no switch"), ("step=3", "no switch"), ("train=0", "no switch"),
     ("lag=-1", "lag must be"), ("lag=1.5", "lag must be"), ("reference:", "expected reference:PATH"),
     ("graph='off", "No closing quotation"), ("b=4 batch=8", "batch is given twice")],
)  # fmt: skip
def test_wrong_words(text, part):
    with pytest.raises(InvalidArgument, match=part):
        parse_variant(text)


def test_every_switch_of_the_table_is_one():
    for backend in SWITCHES:
        for text in SWITCHES[backend]:
            assert parse_variant(text).text == text


def test_sweeps():
    assert parse_sweep("batch=4,8,16") == ("batch", [4, 8, 16])
    assert parse_sweep("t=64,128") == ("seq_len", [64, 128])
    assert parse_sweep("prefetch=off,all") == ("prefetch", ["off", "all"])
    for text, part in (("batch", "expected NAME"), ("batch=", "expected NAME"), ("batch=4,,8", "expected NAME"),
                       ("bach=4", "did you mean 'batch'"), ("batch=4,4", "twice"), ("lr=1,2", "no switch")):  # fmt: skip
        with pytest.raises(InvalidArgument, match=part):
            parse_sweep(text)


# -- losses ----------------------------------------------------------------------------------------

FP32 = {"precision": "fp32", "tf32": 0, "batch": 4, "seq_len": 64, "learning_rate": 1e-5}
BF16 = {**FP32, "precision": "bf16"}


def history(*changes):
    values = {update: 10 - 0.1 * update for update in range(20)}
    values.update(changes)
    return values


def test_noise_is_let_pass_and_more_is_not():
    found = losses.compare(history(), history((2, 9.8 + 2e-4)), FP32, FP32)
    assert found.beyond is None and found.compared == losses.JUDGED
    assert found.largest == pytest.approx(2e-4, rel=1e-3) and found.at == 3
    found = losses.compare(history(), history((2, 9.8 + 4e-4), (5, 3.0)), FP32, FP32)
    assert (found.beyond, found.a, found.b) == (3, 9.8, 9.8 + 4e-4)
    assert losses.compare(history(), history((2, 9.8 + 4e-4)), FP32, BF16).beyond is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_never_agrees(wrong):
    assert losses.compare(history(), history((4, wrong)), BF16, BF16).beyond == 5
    assert losses.compare(history((4, wrong)), history((4, wrong)), BF16, BF16).beyond == 5


def test_what_can_not_be_compared_says_why():
    found = losses.compare(history(), history(), FP32, {**FP32, "batch": 8})
    assert found.compared == 0 and "batch is 4 and 8" in found.why
    found = losses.compare(history(), history((3, 0.0)), FP32, {**FP32, "learning_rate": 1e-3})
    assert found.compared == 1 and found.beyond is None and "learning_rate" in found.why
    assert losses.compare(history(), {}, FP32, FP32).compared == 0


def test_the_reference_in_bf16_agrees_with_itself_in_fp32(golden):
    """The real noise of precision is let pass, in the seven steps before a burst of the gradient parts the two runs."""
    runs = {name: read_output((golden / "logs" / f"d12_b4_{name}_stdout.log").read_text()) for name in ("bf16", "fp32")}
    first = {name: dict(enumerate(run.losses[:7])) for name, run in runs.items()}
    assert losses.compare(first["bf16"], first["fp32"], BF16, FP32).beyond is None
    assert losses.compare(first["bf16"], first["fp32"], FP32, FP32).beyond is not None


def test_differences():
    assert losses.differences(FP32, {**FP32, "learning_rate": 1.00000001e-5}) == []
    assert losses.differences(FP32, BF16) == [("precision", "fp32", "bf16")]
    assert losses.differences({**BF16, "tf32": 1}, {**BF16, "tf32": 0, "unknown": 3}) == []

"""The memory plan in words, and the advice when it doesn't fit."""

from types import SimpleNamespace

import pytest

from pyllmc import memory
from pyllmc.errors import InvalidArgument, LlmcError

GIB, MIB = 2**30, 2**20


def plan(batch, recompute, free=10 * GIB):
    """2 GiB for the model, and for each row 1 GiB, or less with recomputation."""
    totals = [2 * GIB + batch * each for each in (GIB, GIB // 2, GIB // 4)]
    parts = dict.fromkeys(memory.PARTS, 0) | {"parameters": GIB, "optimizer": GIB, "activations": totals[recompute] - 2 * GIB}
    return SimpleNamespace(total=totals[recompute], device_free=free, device_total=free, total_by_recompute=totals, **parts)


def test_summary():
    text = memory.summary(plan(4, 0))
    assert text == (
        "6.0 GiB of 10.0 GiB free: parameters 1.0, optimizer 1.0, activations 4.0; with -r 1 4.0, -r 2 3.0"
    )
    small = SimpleNamespace(**dict.fromkeys(memory.PARTS, 0), total=1000, device_free=5 * MIB, total_by_recompute=[1000] * 3)
    assert memory.summary(small) == "0 MiB of 5 MiB free: next to nothing"


@pytest.mark.parametrize(
    "batch, recompute, wanted",
    [(10, 0, "-r 1 (7.0 GiB) or -b 8 (10.0 GiB)"), (20, 0, "-r 2 (7.0 GiB) or -b 8 (10.0 GiB)"),
     (20, 1, "-r 2 (7.0 GiB) or -b 16 (10.0 GiB)"), (40, 2, "-b 32 (10.0 GiB)")],
)  # fmt: skip
def test_advice_is_true(batch, recompute, wanted):
    assert memory.what_fits(plan, batch, recompute) == f"what would fit 10.0 GiB: {wanted}"


def test_advice_where_there_is_none():
    text = memory.what_fits(lambda batch, recompute: plan(batch, recompute, 1 * GIB), 4, 0)
    assert text == "nothing less than another model fits 1.0 GiB"

    def fails(batch, recompute):
        raise InvalidArgument("no plan")

    assert memory.what_fits(fails, 4, 0) == "" and issubclass(InvalidArgument, LlmcError)


def test_largest_batch_is_the_largest():
    for most in range(12):
        assert memory.largest_batch(lambda rows: plan(rows, 0), most) == min(most, 8)
    assert memory.largest_batch(lambda rows: plan(rows, 0), 12, 0.5) == 3
    assert memory.largest_batch(lambda rows: plan(rows, 0, GIB), 12) == 0

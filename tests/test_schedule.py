"""Learning rates against the formulas, the reference's log, and every odd setting."""

import math
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyllmc.errors import InvalidArgument
from pyllmc.rundir import read_main_log
from pyllmc.schedule import SHAPES, Schedule


def test_reference_log(golden):
    schedule = Schedule("cosine", 1e-3, 20, 2, 0.1)
    rows = read_main_log(golden / "mid_main.log")["trl"]
    assert len(rows) == 20
    assert [f"{schedule(step):.6f}" for step, *_ in rows] == [f"{lr:.6f}" for _, _, lr, _ in rows]


def test_shapes_at_known_places():
    cosine, linear, wsd = (Schedule(name, 1.0, 100, 10, 0.2) for name in ("cosine", "linear", "wsd"))
    assert [cosine(0), cosine(9), cosine(10)] == [0.1, 1.0, 1.0]
    assert cosine(55) == pytest.approx(0.6) and cosine(100) == pytest.approx(0.2)
    assert linear(55) == pytest.approx(0.6) and linear(100) == pytest.approx(0.2)
    assert wsd(10) == wsd(80) == 1.0
    assert wsd(85) == pytest.approx(0.2 + 0.8 * (1 - math.sqrt(0.25))) and wsd(100) == pytest.approx(0.2)
    assert Schedule("constant", 0.5, 10)(0) == Schedule("constant", 0.5, 10)(9) == 0.5


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(SHAPES)),
    lr=st.floats(0, 10),
    steps=st.integers(1, 40),
    warmup=st.integers(0, 50),
    fraction=st.floats(0, 1),
    step=st.integers(0, 100),
)
@example("cosine", 3.7317996564414817, 1, 36, 1.0, 35)  # lr * 36 / 36 is above lr
def test_always_finite_and_within_the_peak(name, lr, steps, warmup, fraction, step):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = Schedule(name, lr, steps, warmup, fraction)(step)
    assert math.isfinite(value) and 0 <= value <= lr
    if step >= steps and step >= warmup and name != "constant":
        assert value == pytest.approx(lr * fraction)


@pytest.mark.parametrize(("steps", "warmup"), [(10, 10), (10, 20), (1, 1)])
@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_warmup_of_the_whole_run_is_warned_about(name, steps, warmup):
    with pytest.warns(UserWarning, match=f"warm-up takes {warmup} of {steps} steps"):
        Schedule(name, 1.0, steps, warmup)


def test_other_odd_settings():
    with pytest.warns(UserWarning, match="no warm-up: warmup=5 is ignored"):
        assert Schedule("constant", 1.0, 10, 5)(0) == 1.0
    with pytest.warns(UserWarning, match="overlaps the decay"):
        Schedule("wsd", 1.0, 10, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Schedule("cosine", 1.0, 10, 9)
        Schedule("wsd", 1.0, 10, 8)
        Schedule("cosine", 1.0, 1, 0)


@pytest.mark.parametrize("name", ["cosin", "", None, "Cosine", 3])
def test_misspelt_names_are_refused_at_once(name):
    with pytest.raises(InvalidArgument, match="known: cosine, linear, constant, wsd"):
        Schedule(name, 1.0, 10)


def test_the_nearest_name_is_offered():
    with pytest.raises(InvalidArgument, match="'cosin': did you mean 'cosine'"):
        Schedule("cosin", 1.0, 10)


@pytest.mark.parametrize(
    "change",
    [{"lr": -1.0}, {"lr": math.nan}, {"lr": math.inf}, {"steps": 0}, {"warmup": -1},
     {"final_fraction": 1.1}, {"final_fraction": math.nan}],
)  # fmt: skip
def test_impossible_numbers(change):
    with pytest.raises(InvalidArgument, match="must be"):
        Schedule(**({"name": "cosine", "lr": 1.0, "steps": 10} | change))

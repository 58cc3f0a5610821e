"""Series made ready to be drawn: means over neighbours, thinning that hides nothing, places on the x axis."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmc.curves import lonely, outline, running_mean, spread, thin, window_of
from pyllmc.history import History
from pyllmc.progress_axis import ProgressAxis, unit_of

NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))


@given(st.lists(NUMBERS, max_size=90), st.integers(2, 200))
def test_running_mean_is_the_mean_of_each_window(numbers, window):
    values, half = np.array(numbers, float), min(window // 2, len(numbers))
    smooth = running_mean(values, window)
    for i, value in enumerate(values):
        back = min(half, i)
        ahead = i if i < half else half  # at the start the window shrinks on both sides
        near = values[i - back : i + ahead + 1]
        near = near[np.isfinite(near)]
        expected = near.mean() if math.isfinite(value) else math.nan
        assert smooth[i] == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


def test_a_spike_leaves_nothing_behind():
    """In one cumulative sum over all values the 2.0 would be lost beside 1e30."""
    values = np.full(1000, 2.0)
    values[100] = 1e30
    smooth = running_mean(values, 11)
    assert smooth[50] == smooth[200] == smooth[999] == 2.0 and smooth[100] > 1e28


def test_smoothing_windows():
    assert window_of("auto", 59) is None and window_of("auto", 1500) == 51
    assert window_of(0, 1500) is None and window_of(1, 1500) is None and window_of(7, 1500) == 7
    assert window_of(7, 0) is None


@given(st.data())
def test_a_thinned_series_keeps_extremes_ends_and_gaps(data):
    bins, seed = 20, data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 100, 2000))
    values = rng.normal(size=2000)
    odd = data.draw(st.lists(st.integers(0, 1999), max_size=30))
    values[odd] = math.nan
    kept = outline(x, values, bins)
    assert np.array_equal(kept, np.unique(kept)) and kept[0] == 0 and kept[-1] == 1999 and kept.size <= 5 * bins
    column = np.minimum(((x - x[0]) / (x[-1] - x[0]) * bins).astype(int), bins - 1)
    for number in range(bins):
        whole, thinned = values[column == number], values[kept[column[kept] == number]]
        assert np.nanmin(whole) == np.nanmin(thinned) and np.nanmax(whole) == np.nanmax(thinned)
        assert np.isnan(whole).any() == np.isnan(thinned).any()


def test_short_series_and_a_single_place_are_thinned_too():
    assert np.array_equal(outline(np.arange(5.0), np.zeros(5)), np.arange(5))
    same_place = outline(np.zeros(1000), np.arange(1000.0), 10)
    assert 0 in same_place and 999 in same_place and same_place.size < 10
    assert thin(np.arange(1e6)).size < 2e4 and list(thin(np.array([3.0, 1.0, 3.0]))) == [1, 3]


def test_lonely_points_and_spread():
    nan = math.nan
    assert list(lonely(np.array([1, nan, 2, 3, nan, 4]))) == [True, False, False, False, False, True]
    assert spread(np.array([nan, 1, 2, 3, math.inf])) == pytest.approx((1.1, 2, 2.9))
    assert all(map(math.isnan, spread(np.array([nan]))))


def steps(rows):
    """A History of (step, ms, tokens of the step)."""
    return History.from_records(
        {"kind": "train", "step": step, "loss": 1.0, "ms": ms, "tok_s": ms and tokens / ms * 1e3} for step, ms, tokens in rows
    )


def test_tokens_and_time_add_up():
    history = steps([(0, 500.0, 64), (1, 100.0, 64), (2, 100.0, 64), (3, 100.0, 64)])
    assert list(ProgressAxis(history, "tokens")(np.array([0, 2, 3, 4, 6]))) == [0, 128, 192, 256, 384]
    time = ProgressAxis(history, "time")
    assert time(np.array([0, 1, 3, 4, 5])) == pytest.approx([0, 0.5, 0.7, 0.8, 0.9])
    assert time.end == pytest.approx(0.7) and time.step == pytest.approx(0.1)
    assert list(ProgressAxis(history)(np.array([0, 3, 9]))) == [0, 3, 9]


def test_unlogged_steps_count_as_the_median_does():
    """A log that begins at 10 with a slow step, lacks 13 and 14, and has no time for 12."""
    history = steps([(10, 900.0, 8), (11, 100.0, 8), (12, None, 8), (15, 100.0, 8)])
    x = ProgressAxis(history, "time")(np.array([5, 10, 11, 12, 13, 15, 16]))
    assert x == pytest.approx([0.5, 1.0, 1.9, 2.0, 2.1, 2.3, 2.4])


def test_what_a_log_lacks_is_told():
    history = steps([(0, None, 1), (1, None, 1)])
    for kind, missing in (("time", "no step times"), ("tokens", "no token counts"), ("steps", "")):
        axis = ProgressAxis(history, kind)
        assert axis.missing == missing and np.isnan(axis(history.step)).all() == bool(missing)
    assert ProgressAxis(steps([]), "time").missing == ""


def test_units_of_time():
    assert [unit_of("time", end)[1].split()[0] for end in (0, 100, 200, 20000)] == [
        "seconds", "seconds", "minutes", "hours",
    ]  # fmt: skip

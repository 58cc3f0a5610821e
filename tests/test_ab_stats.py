"""Verdicts over synthetic clocks: no false alarms under noise of many kinds, and true differences found."""

import math

import numpy as np
import pytest

from pyllmc.ab import stats
from pyllmc.ab.stats import Ratio, interval, orders, ratio_of, student

TRIALS = 200


def white(n, rng):
    return rng.normal(0, 0.02, n)


def correlated(n, rng):
    """Clock and power wander: each block is 0.9 of the one before."""
    noise = np.zeros(n)
    for i in range(n):
        noise[i] = (0.9 * noise[i - 1] if i else 0) + rng.normal(0, 0.02 * math.sqrt(1 - 0.81))
    return noise


def walk(n, rng):
    return np.cumsum(rng.normal(0, 0.01, n))


def slow_sine(n, rng):
    """±10%, a period of tens of blocks, somewhere in its course."""
    return np.log(1 + 0.1 * np.sin(2 * np.pi * np.arange(n) / rng.uniform(20, 200) + rng.uniform(0, 7))) + rng.normal(0, 0.005, n)


def sine_in_step(n, rng):
    """The worst period there is: exactly one round."""
    return np.log(1 + 0.1 * np.sin(2 * np.pi * np.arange(n) / 4 + rng.uniform(0, 7))) + rng.normal(0, 0.005, n)


def hiccups(n, rng):
    return rng.normal(0, 0.005, n) + (rng.random(n) < 0.1) * rng.exponential(0.2, n)


def two_speeds(n, rng):
    return 0.15 * ((np.arange(n) // rng.integers(3, 30)) % 2) + rng.normal(0, 0.01, n)


def measured(noise, rounds, seed, effect=0.0):
    """The Ratio that a machine with this noise gives, B taking 1 + effect times as long."""
    times = np.exp(noise(4 * rounds, np.random.default_rng(seed))).reshape(rounds, 4)
    found = []
    for order, block in zip(orders(rounds, seed), times, strict=True):
        a = [time for side, time in zip(order, block, strict=True) if side == "A"]
        b = [time * (1 + effect) for side, time in zip(order, block, strict=True) if side == "B"]
        found.append((a, b))
    return ratio_of(found, seed=seed)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 999)


@pytest.mark.parametrize("rounds", [4, 5, 6, 10, 20])
@pytest.mark.parametrize("noise", [white, correlated, walk, slow_sine, sine_in_step, hiccups, two_speeds])
def test_no_difference_is_called_none(noise, rounds):
    verdicts = [measured(noise, rounds, seed).verdict for seed in range(TRIALS)]
    assert verdicts.count("same") >= 0.94 * TRIALS, (verdicts.count("faster"), verdicts.count("slower"))


@pytest.mark.parametrize("rounds", [4, 10])
def test_the_interval_holds_the_truth(rounds):
    found = [measured(correlated, rounds, seed, 0.03) for seed in range(TRIALS)]
    assert sum(r.low <= 1.03 <= r.high for r in found) >= 0.94 * TRIALS


@pytest.mark.parametrize("effect, verdict", [(0.03, "slower"), (-0.03, "faster")])
@pytest.mark.parametrize("noise", [white, slow_sine, correlated])
def test_three_percent_are_found_under_two_percent_of_noise(noise, effect, verdict):
    verdicts = [measured(noise, 10, seed, effect).verdict for seed in range(100)]
    assert verdicts.count(verdict) >= 90, verdicts


def test_blocks_one_after_the_other_would_be_fooled():
    """The drift that interleaving cancels is no straw man: all of A, then all of B, gives a difference nearly always."""
    fooled = 0
    for seed in range(50):
        times = np.exp(slow_sine(40, np.random.default_rng(seed)))
        rounds = list(zip(times[:20].reshape(10, 2), times[20:].reshape(10, 2), strict=True))
        fooled += ratio_of(rounds).verdict != "same"
    assert fooled > 30


def test_a_plain_percentile_bootstrap_would_be_too_sure():
    """Why stats.py does more than resample: of six rounds that holds the truth in fewer than 92 of 100."""
    held = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        values = rng.normal(0, 0.02, 6)
        means = values[rng.integers(0, 6, (999, 6))].mean(axis=1)
        low, high = np.quantile(means, (0.025, 0.975))
        held += low <= 0 <= high
    assert held < 0.92 * 300


def test_students_quantiles():
    """Against the tables in every textbook."""
    for freedom, quantile in ((1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student(freedom) == pytest.approx(quantile, abs=1e-3)


def test_orders_are_balanced_and_drawn():
    for rounds in range(1, 12):
        drawn = orders(rounds, rounds)
        assert len(drawn) == rounds and abs(drawn.count("ABBA") - drawn.count("BAAB")) <= 1
    assert len({tuple(orders(6, seed)) for seed in range(40)}) > 4


def test_few_rounds():
    assert ratio_of([]) == Ratio(None, None, None, 0) and ratio_of([]).verdict == "unknown"
    three = ratio_of([([1, 1], [2, 2])] * 3)
    assert (three.ratio, three.low, three.rounds, three.verdict) == (2, None, 3, "unknown")
    assert ratio_of([([1, 1], [2, 2])] * 4).verdict == "slower"


def test_equal_rounds_have_no_width_but_the_clocks_resolution():
    exact = ratio_of([([1.0, 1.0], [1.01, 1.01])] * 5)
    assert exact.low == pytest.approx(1.01) == exact.high
    rounded = ratio_of([([1.0, 1.0], [1.01, 1.01])] * 5, resolution=0.02)
    assert rounded.verdict == "same" and rounded.low < 1 < rounded.high


def test_times_that_are_no_times():
    for wrong in (0.0, math.nan, math.inf, -1.0):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="numbers above 0"):
            ratio_of([([1.0, 1.0], [1.0, wrong])] * 3)


def test_the_interval_is_around_the_mean_and_repeats():
    values = np.random.default_rng(1).normal(0.01, 0.02, 12)
    low, high = interval(values, 3)
    assert low < values.mean() < high and (low, high) == interval(values, 3)

"""What a set of interleaved rounds says about two sides. Numbers in, numbers out; no clock, no file.

The unit is the round. Steps of one block share a clock frequency, a temperature and a neighbour on the machine,
so two hundred steps of ten blocks know little more than ten numbers; an interval from resampled steps
would be several times too narrow. A round is two blocks of each side, ABBA or BAAB: a machine that slows down
steadily slows both sides alike within a round. Of every two rounds one is ABBA and one BAAB, which first is
drawn by lot: what is left of any drift, even one in step with the rounds, then has either sign.

Of each round one number is taken, log(time of B / time of A), and of these the mean. A percentile bootstrap of few
numbers is too sure of itself (of six, its 95% hold the truth in 86 of 100 cases). Here each resampled mean
is divided by its own standard error (the bootstrap-t), and where Student's t is wider, it counts: the
bootstrap knows no tails that it hasn't seen, Student's t no skew. WIDER on top takes false alarms
from 5 to about 2 in 100: one command compares ten switches, and a wrong "faster" costs more than a repetition.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
WIDER = 1.2
MIN_ROUNDS = 4  # two of either order; with three, a slow drift still made 6 false alarms in 100
RESAMPLES = 4999
MOST = 1.5  # of Student's t: resamples of few rounds can be nearly one value, and their tiny error throws them far out


@dataclass(frozen=True)
class Ratio:
    """Time of B by time of A: the estimate, its 95% interval (None with fewer than MIN_ROUNDS rounds), and the
    number of rounds. All None without a round. Below 1, B takes less time."""

    ratio: float | None
    low: float | None
    high: float | None
    rounds: int

    @property
    def verdict(self):
        """ "faster" or "slower" (B than A), "same" (no difference seen), or "unknown" (no interval)."""
        if self.low is None:
            return "unknown"
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "same"


def ratio_of(rounds, resolution=0.0, seed=0):
    """The Ratio of paired rounds.

    rounds: a list of (A, B), each a sequence of block times in any one unit, above 0. resolution: half the last
    digit of the clocks, as a share of a step; two rounded times can be so far apart in truth, however well
    their rounds agree. seed: of the resampling.
    """
    logs = np.array([np.mean(np.log(b)) - np.mean(np.log(a)) for a, b in rounds], np.float64)
    if not logs.size:
        return Ratio(None, None, None, 0)
    if not np.isfinite(logs).all():
        raise ValueError(f"block times must be numbers above 0, got {rounds}")
    low, high = interval(logs, seed)
    if low is None:
        return Ratio(math.exp(logs.mean()), None, None, logs.size)
    return Ratio(math.exp(logs.mean()), math.exp(low - resolution), math.exp(high + resolution), logs.size)


def interval(values, seed=0):
    """(low, high) of the mean of independent values, at LEVEL; (None, None) with fewer than MIN_ROUNDS."""
    count = len(values)
    if count < MIN_ROUNDS:
        return None, None
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(count)
    drawn = values[np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    usable = errors > 1e-12 * np.abs(values).max()  # one value drawn each time says nothing about its error
    below = above = reach = student(count - 1)
    if usable.any():
        studentized = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
        least, most = np.quantile(studentized, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        below, above = (min(max(reach, x), MOST * reach) for x in (most, -least))
    return mean - WIDER * below * error, mean + WIDER * above * error


def orders(rounds, seed=0):
    """"ABBA" or "BAAB" for each of so many rounds: of every two one each, in an order drawn by lot."""
    random = np.random.default_rng(seed)
    pairs = (random.permutation(["ABBA", "BAAB"]).tolist() for _ in range(-(-rounds // 2)))
    return [order for pair in pairs for order in pair][:rounds]


@functools.cache
def student(freedom):
    """Two-sided quantile of Student's t at LEVEL: the density, summed by Simpson's rule, reaches LEVEL there."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def inside(t, parts=2000):
        x = np.linspace(0, t, parts + 1)
        y = scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
        return 2 * t / parts / 3 * (y[0] + 4 * y[1::2].sum() + 2 * y[2:-1:2].sum() + y[-1])

    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < LEVEL else (low, middle)
    return high

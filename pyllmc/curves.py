"""Series of numbers made ready to be drawn: smoothed, thinned, cut where a few values would hide the rest.

NaN and infinite values count as not finite throughout; they are left out of every sum and every line.
"""

import numpy as np

SMOOTH_FROM = 60  # points, from which on a running mean helps the eye
BINS = 1600  # columns of a picture that a long series is thinned to, about its pixels


def running_mean(values, window=None):
    """Mean of the finite values among `window` neighbours (default: a thirtieth of all); NaN where the
    middle is not finite.

    Towards the start the window shrinks on both sides, for the steep beginning of a loss would be bent.
    No value counts outside its windows: a spike of 1e30 leaves nothing behind, as it would in one long
    cumulative sum. O(n): a window is the end of one block of its length and the beginning of the next.
    """
    half = max(1, values.size // 60) if window is None else min(window // 2, values.size)
    finite = np.isfinite(values)
    sums = windowed(np.where(finite, values, 0.0), half)
    counts = windowed(finite.astype(float), half)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(finite, sums / counts, np.nan)


def windowed(values, half):
    """Sum over the 2 half + 1 values around each one, as far as they exist; see running_mean for the start."""
    n, width = values.size, 2 * half + 1
    if n == 0:
        return values
    blocks = -(-(n + 2 * half) // width) + 1
    padded = np.zeros(blocks * width)
    padded[half : half + n] = values
    table = padded.reshape(blocks, width)
    with np.errstate(over="ignore", invalid="ignore"):
        heads = np.cumsum(table, axis=1).ravel()  # from the beginning of a block
        tails = np.cumsum(table[:, ::-1], axis=1)[:, ::-1].ravel()  # to its end
        first = np.arange(n)
        whole = first % width == 0  # the window is a block
        sums = tails[first] + np.where(whole, 0.0, heads[first + width - 1])
        near = min(half, (n + 1) // 2)
        sums[:near] = np.cumsum(values[: 2 * near])[::2][:near]
    return sums


def window_of(smooth, count):
    """Points to average over, None for none. smooth: "auto", or the window itself; 0 and 1: none."""
    if smooth == "auto":
        return max(1, count // 60) * 2 + 1 if count >= SMOOTH_FROM else None
    return smooth if smooth > 1 and count else None


def outline(x, values, bins=BINS):
    """Indices that draw the same picture: of each of `bins` columns of x the first, lowest, highest and last
    value, and the first that is not finite, so that gaps stay gaps. x: in increasing order, finite."""
    if values.size <= 5 * bins:
        return np.arange(values.size)
    span = x[-1] - x[0]
    column = np.minimum(((x - x[0]) / span * bins).astype(int), bins - 1) if span > 0 else np.zeros(x.size, int)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    number = np.cumsum(np.diff(column, prepend=-1) != 0) - 1  # of the column among those that hold values
    finite = np.isfinite(values)
    kept = [starts, np.append(starts[1:] - 1, values.size - 1)]
    for reduce, empty in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        extremes = reduce.reduceat(np.where(finite, values, empty), starts)
        kept.append(first_of(number, finite & (values == extremes[number])))
    kept.append(first_of(number, ~finite))
    return np.unique(np.concatenate(kept))


def first_of(groups, chosen):
    """Index of the first chosen element of each group. groups: in increasing order."""
    index = np.flatnonzero(chosen)
    return index[np.flatnonzero(np.diff(groups[index], prepend=-1))]


def thin(x, bins=BINS):
    """Of marks at x those that can be told apart in a picture."""
    x = np.unique(x)
    return x[outline(x, np.zeros(x.size), bins)]


def lonely(values):
    """Where a value is finite and its neighbours are not: a line through it would be invisible."""
    finite = np.concatenate([[False], np.isfinite(values), [False]])
    return finite[1:-1] & ~finite[:-2] & ~finite[2:]


def spread(values):
    """(5%, 50%, 95%) of the finite values; NaN without any."""
    finite = values[np.isfinite(values)]
    return tuple(np.percentile(finite, (5, 50, 95))) if finite.size else (np.nan,) * 3

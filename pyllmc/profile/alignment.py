"""Which kernel belongs to which span: CUPTI's clock and the engine's differ by an unknown offset.

A span's events stand right before its first kernel and right after its last, so at the true offset kernels
lie within spans. Kernels of several streams overlap; a stream belongs to the lane whose spans it fits best.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

BIN_US = 1.0  # of the histogram that proposes offsets: a kernel starts within a few of these of its span
CANDIDATES = 12
FINE_US, FINE_REACH_US = 0.25, 8.0
MOST = 1500  # starts of each side that are compared: the histogram takes their product
FITS = 0.5  # share of a stream's kernel time that must lie within a lane's spans
NOTHING = -1


class Kernel(NamedTuple):
    """A kernel, or a copy or fill, that the device ran; microseconds by CUPTI's clock."""

    name: str
    start_us: float
    end_us: float
    stream: int = 0


class Assignment(NamedTuple):
    """span_of: for each kernel the index of its span, or None. offset_us: what to add to a kernel's time to get
    a span's. share: of the kernels' time, assigned."""

    span_of: list
    offset_us: float
    share: float


def assign(kernels, spans, lane="compute"):
    """The Assignment of a step's kernels to its spans (with name, lane, start_us, end_us).

    The offset is found on `lane`, where nearly all work is, with all kernels as candidates; then each stream
    is given to the lane that it fits, and each kernel to that lane's span that contains its midpoint, the
    shortest where spans nest. What is left may belong to lanes that no stream was given to.
    """
    if not kernels or not spans:
        return Assignment([None] * len(kernels), 0.0, 0.0)
    starts, ends = (np.array([getattr(k, side) for k in kernels]) for side in ("start_us", "end_us"))
    indices = [i for i, span in enumerate(spans) if span.lane == lane] or list(range(len(spans)))
    offset = find_offset(starts, ends, *_times([spans[i] for i in indices]))
    middle = (starts + ends) / 2 + offset
    span_of = np.full(len(kernels), NOTHING)
    by_lane = defaultdict(list)
    for i, span in enumerate(spans):
        by_lane[span.lane].append(i)
    by_stream = defaultdict(list)
    for i, kernel in enumerate(kernels):
        by_stream[kernel.stream].append(i)
    step_us = max(span.end_us for span in spans) - min(span.start_us for span in spans)
    time = ends - starts
    taken = set()
    for members in map(np.array, by_stream.values()):
        fits = []
        for name, lane_spans in by_lane.items():
            where = _containing([spans[i] for i in lane_spans], lane_spans, middle[members])
            fit = time[members][where != NOTHING].sum() / max(time[members].sum(), 1e-12)
            # Whatever runs beside a busy lane lies within its spans: a lane with little work says more.
            covered = sum(spans[i].end_us - spans[i].start_us for i in lane_spans) / max(step_us, 1e-12)
            if fit >= FITS:
                fits.append((fit / max(covered, 1e-6), name, where))
        if fits:
            _, name, span_of[members] = max(fits, key=lambda each: each[0])
            taken.add(name)
    # Lanes without a stream of their own share one, as all do where there is only one.
    shared = [i for i, span in enumerate(spans) if span.lane not in taken]
    left = np.flatnonzero(span_of == NOTHING)
    span_of[left] = _containing([spans[i] for i in shared], shared, middle[left])
    listed = [None if i == NOTHING else int(i) for i in span_of]
    return Assignment(listed, float(offset), float(time[span_of != NOTHING].sum() / max(time.sum(), 1e-12)))


def find_offset(starts, ends, span_starts, span_ends):
    """What to add to kernel times so that most kernel time lies within single spans; microseconds.

    Differences between span starts and kernel starts pile up at the true offset. Layers repeat, so there are
    lesser piles a layer away: the likeliest ones are tried, finely, and the best fit is taken.
    """
    order = np.argsort(span_starts)
    span_starts, span_ends = span_starts[order], span_ends[order]
    # the first ones: neighbours have to stay together for their differences to mean anything
    some_starts, some_spans = np.sort(starts)[:MOST], span_starts[:MOST]
    differences = (some_spans[:, None] - some_starts[None, :]).ravel()
    low = differences.min()
    bins = ((differences - low) / BIN_US).astype(np.int64)
    numbers, counts = np.unique(bins, return_counts=True)
    # neighbours share a pile: a kernel starts a little and not always equally late in its span
    padded = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    piles = np.array([sum(padded.get(n + d, 0) for d in (-1, 0, 1)) for n in numbers.tolist()])
    likely = numbers[np.argsort(piles, kind="stable")[::-1][:CANDIDATES]]
    steps = np.arange(-FINE_REACH_US, FINE_REACH_US + FINE_US / 2, FINE_US)
    offsets = np.unique((low + (likely[:, None] + 0.5) * BIN_US + steps[None, :]).ravel())
    scores = np.array([_time_inside(starts + o, ends + o, span_starts, span_ends) for o in offsets])
    best = offsets[scores >= scores.max() * (1 - 1e-9)]
    return best[len(best) // 2]  # the middle of a plateau has the most room on both sides


def _time_inside(starts, ends, span_starts, span_ends):
    """Kernel time within the span that contains the kernel's midpoint; spans of one lane, in order."""
    at = np.searchsorted(span_starts, (starts + ends) / 2, side="right") - 1
    known = at >= 0
    at = np.maximum(at, 0)
    inside = np.minimum(ends, span_ends[at]) - np.maximum(starts, span_starts[at])
    return np.where(known, np.maximum(inside, 0), 0).sum()


def _containing(spans, names, points):
    """For each point the name (of `names`, one a span) of the shortest span that contains it, or NOTHING."""
    found = np.full(points.size, NOTHING)
    shortest = np.full(points.size, np.inf)
    for name, span in zip(names, spans, strict=True):
        duration = span.end_us - span.start_us
        better = (points >= span.start_us) & (points <= span.end_us) & (duration < shortest)
        found[better], shortest[better] = name, duration
    return found


def _times(spans):
    return np.array([span.start_us for span in spans]), np.array([span.end_us for span in spans])

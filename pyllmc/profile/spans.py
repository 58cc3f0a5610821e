"""A recorded step in numbers: how busy each lane was, what ran beside what, and where nothing ran.

An interval is a (start, end) pair in microseconds. Spans may nest or overlap on a lane: time counts once.
"""

import dataclasses
import math
from bisect import bisect_left, bisect_right

COMPUTE = "compute"
COPIES = ("upload inputs", "upload targets", "download result")


def merged(intervals):
    """The union of intervals as disjoint ones in order; empty and reversed ones, and those with NaN, are nothing."""
    joined = []
    for start, end in sorted(pair for pair in intervals if pair[0] < pair[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def length(disjoint):
    """Total length of disjoint intervals."""
    return math.fsum(end - start for start, end in disjoint)


def common(first, second):
    """The parts that two lists, each of disjoint intervals in order, have in common."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            shared.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def holes(disjoint, start, end):
    """What disjoint intervals in order leave uncovered of start..end."""
    open_parts, at = [], start
    for left, right in disjoint:
        if at < min(left, end):
            open_parts.append((at, min(left, end)))
        at = max(at, right)
    if at < end:
        open_parts.append((at, end))
    return open_parts


def usable(spans):
    """Spans with finite times that don't end before they start, by start, longer ones first."""
    kept = [span for span in spans if span.start_us <= span.end_us and math.isfinite(span.end_us - span.start_us)]
    return sorted(kept, key=lambda span: (span.start_us, -span.end_us))


def since_first(spans):
    """The same spans with times since the first one on the compute lane started.

    An engine's times begin when it is told to record. A GPU's compute lane then waits for the host, which
    makes a graph with events in it: that is no part of a step.
    """
    starts = [span.start_us for span in usable(spans) if span.lane == COMPUTE]
    shift = min(starts, default=0.0)
    return [dataclasses.replace(span, start_us=span.start_us - shift, end_us=span.end_us - shift) for span in spans]


def bounds(spans):
    """(start, end) of the step: from time 0 to the end of the last span on the compute lane. Copies on other
    lanes may begin before and end after it."""
    ends = [span.end_us for span in spans if span.lane == COMPUTE] or [span.end_us for span in spans]
    return 0.0, max([0.0, *ends])


def analyse(spans):
    """A step's spans as numbers, a dict for JSON. Times in microseconds, shares from 0 to 1, None where there is
    nothing to take a share of.

    step_us: see bounds. lanes: for each its busy time, share of the step, number of spans, and the share of its
    busy time in which the compute lane worked too. copies: the same for all copies together. idle: shares of
    the step in which the compute lane, and in which every lane, had nothing. gaps: holes of the compute lane
    with the spans before and after, longest first. unusable: spans without sensible times, left out here.
    """
    kept = usable(spans)
    start, end = bounds(kept)
    step = [(start, end)]
    by_lane = {}
    for span in kept:
        by_lane.setdefault(span.lane, []).append(span)
    busy = {lane: merged((s.start_us, s.end_us) for s in listed) for lane, listed in by_lane.items()}
    compute = busy.get(COMPUTE, [])
    lanes = [
        {"lane": lane, "spans": len(by_lane[lane]), "busy_us": length(times),
         "share_of_step": _share(length(common(times, step)), end - start),
         "beside_compute": None if lane == COMPUTE else _share(length(common(times, compute)), length(times))}
        for lane, times in busy.items()
    ]  # fmt: skip
    lanes.sort(key=lambda row: -row["busy_us"])
    copies = merged((s.start_us, s.end_us) for s in kept if s.name in COPIES and s.lane != COMPUTE)
    anything = merged(pair for times in busy.values() for pair in times)
    return {
        "step_us": end - start, "lanes": lanes,
        "copies": {"busy_us": length(copies), "beside_compute": _share(length(common(copies, compute)), length(copies))},
        "idle": {
            "compute": _share(length(holes(compute, start, end)), end - start),
            "all_lanes": _share(length(holes(anything, start, end)), end - start),
        },
        "gaps": gaps(by_lane.get(COMPUTE, []), start, end), "unusable": len(spans) - len(kept),
    }  # fmt: skip


def gaps(spans, start, end):
    """Holes of one lane's spans in start..end, longest first: start_us, end_us, and the names of the spans before
    and after (None at the ends of the step)."""
    busy = merged((span.start_us, span.end_us) for span in spans)
    by_end = sorted(spans, key=lambda span: span.end_us)
    by_start = sorted(spans, key=lambda span: span.start_us)
    ends, starts = [span.end_us for span in by_end], [span.start_us for span in by_start]
    found = []
    for left, right in holes(busy, start, end):
        before, after = bisect_right(ends, left), bisect_left(starts, right)
        found.append({
            "start_us": left, "end_us": right,
            "after": by_end[before - 1].name if before else None,
            "before": by_start[after].name if after < len(by_start) else None,
        })  # fmt: skip
    return sorted(found, key=lambda gap: gap["start_us"] - gap["end_us"])


def _share(part, whole):
    return part / whole if whole > 0 else None

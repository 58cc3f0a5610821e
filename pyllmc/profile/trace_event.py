"""A step in the trace event format that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Complete events ("ph": "X") with microseconds; a lane is a thread, named by a metadata event ("ph": "M"). The
format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import json

from .op_costs import kind_of
from .spans import usable

PROCESS = 1
LANES = ("compute", "inputs", "targets", "loss")  # in this order, others after them


def trace(spans, title, gaps=()):
    """The trace as a dict. spans: of a step. gaps: as spans.analyse lists them, on a row of their own."""
    spans = usable(spans)
    lanes = lane_order(spans)
    first = min([0.0, *(span.start_us for span in spans)])  # an early copy: times may not be negative
    events = [_meta("process_name", 0, name=title)]
    for number, lane in enumerate(lanes, 1):
        events += [_meta("thread_name", number, name=lane), _meta("thread_sort_index", number, sort_index=number)]
    for span in spans:
        kind = kind_of(span.name)
        events.append({
            "ph": "X", "pid": PROCESS, "tid": lanes.index(span.lane) + 1, "name": span.name,
            "cat": kind or "op", "ts": span.start_us - first, "dur": span.end_us - span.start_us,
            "args": {} if span.layer is None else {"layer": span.layer},
        })  # fmt: skip
    if gaps:
        row = len(lanes) + 1
        events += [_meta("thread_name", row, name="gaps"), _meta("thread_sort_index", row, sort_index=row)]
        events += [
            {"ph": "X", "pid": PROCESS, "tid": row, "name": "gap", "cat": "gap", "ts": gap["start_us"] - first,
             "dur": gap["end_us"] - gap["start_us"], "args": {"after": gap["after"], "before": gap["before"]}}
            for gap in gaps
        ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def lane_order(spans):
    """Names of the lanes that have spans: the engine's in their order, then others as they come."""
    found = list(dict.fromkeys(span.lane for span in spans))
    return [lane for lane in LANES if lane in found] + [lane for lane in found if lane not in LANES]


def to_json(spans, title, gaps=()):
    return json.dumps(trace(spans, title, gaps), allow_nan=False)


def _meta(what, thread, **arguments):
    return {"ph": "M", "pid": PROCESS, "tid": thread, "name": what, "args": arguments}

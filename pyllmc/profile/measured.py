"""Times of ops and kernels over several steps, and how far they are from what the device can do."""

import statistics
from collections import Counter, defaultdict

from .op_costs import OPS, kind_of

OTHER = "(no span)"  # kernels that belong to none


def times(values):
    """{"ms", "low", "high"}: median and extremes over steps of times in microseconds."""
    ms = [value / 1e3 for value in values]
    return {"ms": statistics.median(ms), "low": min(ms), "high": max(ms)}


def op_times_from_spans(recorded):
    """{op: microseconds in each step} of several recorded steps. recorded: lists of spans.

    Where a span encloses others its time counts them too; the engine's don't nest.
    """
    found = defaultdict(lambda: [0.0] * len(recorded))
    for step, spans in enumerate(recorded):
        for span in spans:
            found[span.name][step] += span.end_us - span.start_us
    return dict(found)


def split_steps(kernels, armed, steps):
    """(for each kernel of the armed step its microseconds in each of `steps` steps, names that differ).

    kernels: of so many whole steps, run one after another without spans. A step's kernels with one name come
    in one order, so the i-th of a name is the (i mod count)-th of it in its step: no stream, graph or clock
    has to be understood. A name whose number isn't steps x that of the armed step is listed and has the armed
    step's times.
    """
    counts = Counter(kernel.name for kernel in armed)
    by_name = defaultdict(list)
    for kernel in sorted(kernels, key=lambda kernel: kernel.start_us):
        by_name[kernel.name].append(kernel.end_us - kernel.start_us)
    differing = sorted(name for name in counts.keys() | by_name.keys() if len(by_name[name]) != steps * counts[name])
    seen, durations = Counter(), [None] * len(armed)
    for i in sorted(range(len(armed)), key=lambda i: armed[i].start_us):
        name = armed[i].name
        if name in differing:
            durations[i] = [armed[i].end_us - armed[i].start_us] * steps
        else:
            durations[i] = by_name[name][seen[name] :: counts[name]]
        seen[name] += 1
    return durations, differing


def op_times_from_kernels(durations, span_of, spans):
    """{op: microseconds in each step}. durations: as split_steps gives them. span_of: each kernel's span or None.

    An op with spans but no kernels of its own is absent.
    """
    found = {}
    for each, at in zip(durations, span_of, strict=True):
        name = OTHER if at is None else spans[at].name
        so_far = found.get(name, [0.0] * len(each))
        found[name] = [a + b for a, b in zip(so_far, each, strict=True)]
    return found


def kernel_rows(armed, durations, span_of, spans):
    """A row for each kernel name, the longest first: calls in a step, time of a step, mean of a call in
    microseconds, share of all kernels' time, and the ops that it works for."""
    calls, ops, total = Counter(), defaultdict(Counter), {}
    for kernel, each, at in zip(armed, durations, span_of, strict=True):
        calls[kernel.name] += 1
        ops[kernel.name][OTHER if at is None else spans[at].name] += 1
        so_far = total.get(kernel.name, [0.0] * len(each))
        total[kernel.name] = [a + b for a, b in zip(so_far, each, strict=True)]
    rows = [
        {"kernel": name, "calls": calls[name], **times(values), "mean_us": 1e3 * times(values)["ms"] / calls[name],
         "ops": [op for op, _ in ops[name].most_common()]}
        for name, values in total.items()
    ]  # fmt: skip
    return _with_shares(rows)


def op_rows(op_times, work, calls, ceilings=None):
    """A row for each op, the longest first, for JSON and tables.

    op_times: {op: microseconds in each step}. work: {op: Work of a step}. calls: {op: spans in a step}.
    ceilings: {"copy_tb_s", "product_tflops"} or None. In a row: kind; ms, low and high a step; share of all ops'
    time; flops and bytes a step; tflops and tb_s achieved; bound, which of the two ceilings is nearer; floor_ms,
    the least time at the ceilings; of_ceiling, floor over time; above_ms, time above the floor. None: not known.
    """
    rows = []
    for name, values in op_times.items():
        row = {"op": name, "kind": kind_of(name), "calls": calls.get(name, 0), **times(values)}
        cost = work.get(name)
        flops, moved = (cost.flops, cost.bytes) if cost else (None, None)
        seconds = row["ms"] / 1e3
        row.update(flops=flops, bytes=moved, tflops=_rate(flops, seconds), tb_s=_rate(moved, seconds))
        row.update(floor(flops, moved, row["ms"], ceilings))
        rows.append(row)
    return _with_shares(rows)


def floor(flops, moved, ms, ceilings):
    """bound, floor_ms, of_ceiling and above_ms of an op that took `ms`; all None without work or ceilings."""
    limits = []
    if ceilings and flops:
        limits.append((1e3 * flops / (ceilings["product_tflops"] * 1e12), "compute"))
    if ceilings and moved:
        limits.append((1e3 * moved / (ceilings["copy_tb_s"] * 1e12), "memory"))
    if not limits:
        return dict.fromkeys(("bound", "floor_ms", "of_ceiling", "above_ms"))
    least, bound = max(limits)
    return {"bound": bound, "floor_ms": least, "of_ceiling": least / ms if ms > 0 else None, "above_ms": ms - least}


def unknown_ops(spans):
    """Names of spans that the table of costs doesn't have."""
    return sorted({span.name for span in spans} - OPS.keys())


def _rate(amount, seconds):
    return amount / seconds / 1e12 if amount is not None and seconds > 0 else None


def _with_shares(rows):
    total = sum(row["ms"] for row in rows)
    for row in rows:
        row["share"] = row["ms"] / total if total > 0 else None
    return sorted(rows, key=lambda row: -row["ms"])

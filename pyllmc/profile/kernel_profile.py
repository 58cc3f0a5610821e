"""Kernels of a step, each with its op: steps without spans give the times, one with spans the ops."""

from .alignment import assign
from .kernels import Collector
from .measured import kernel_rows, op_times_from_kernels, split_steps
from .spans import length, merged

WELL_ASSIGNED = 0.95  # of the kernels' time; below that a note says so


def profile_kernels(open_runner, steps, warmup, tick=lambda: None):
    """(op_times of measured.py, dict of "rows", "assigned", "offset_us", "busy", "steps"; notes).

    open_runner: makes a Runner on a fresh model, as a context manager: graphs captured before CUPTI listened
    would stay unknown to it. Raises Unavailable where CUPTI can't be used.

    Ops are told from a step with spans, whose events stretch it; times are those of steps without. busy: the
    share of those in which any kernel ran.
    """
    collector = Collector()
    with open_runner() as runner, collector:
        runner.run(warmup, tick)
        collector.take()
        runner.run(steps, tick)
        plain = collector.take()
        spans = runner.record()
        armed = collector.take()
        tick()
    return evaluate(plain, armed, spans, steps, collector.untimed)


def evaluate(plain, armed, spans, steps, untimed=0):
    """profile_kernels from what was collected. plain: kernels of so many steps. armed: of the one with spans."""
    notes = []
    durations, differing = split_steps(plain, armed, steps)
    found = assign(armed, spans)
    if differing:
        notes.append(
            f"{len(differing)} kernels ran another number of times in the step with spans, whose times stand for them: "
            + ", ".join(differing[:3])
        )
    if untimed:
        notes.append(f"CUPTI had no time for {untimed} kernels, which are left out")
    if found.share < WELL_ASSIGNED:
        notes.append(f"only {found.share:.1%} of the kernels' time could be assigned to an op")
    window = [(kernel.start_us, kernel.end_us) for kernel in plain]
    whole = max(end for _, end in window) - min(start for start, _ in window) if window else 0
    kernels = {
        "rows": kernel_rows(armed, durations, found.span_of, spans), "assigned": found.share, "offset_us": found.offset_us,
        "busy": length(merged(window)) / whole if whole > 0 else None, "steps": steps,
    }  # fmt: skip
    return op_times_from_kernels(durations, found.span_of, spans), kernels, notes

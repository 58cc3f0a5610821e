"""One profile, measured: steps without spans, steps with spans, kernels and ceilings if asked for, memory."""

import contextlib
import statistics
from collections import Counter
from dataclasses import dataclass

from .. import _native, memory, options, peaks
from ..config import GPT2Config
from ..errors import OutOfMemory, Unavailable
from ..train import out_of_memory, planner, resolved
from ..weights import Weights
from . import ceilings, document, measured
from .kernel_profile import profile_kernels
from .op_costs import Shape, step_work
from .options import ENGINE_FIELDS
from .record import Runner, make_model
from .spans import analyse, bounds, since_first


@dataclass(frozen=True)
class Session:
    """What to profile. name: for people. weights: Weights, or None for random ones. where: GPT2's keywords,
    batch, seq_len and device among them. micro_steps: of an update. steps, warmup: to measure, and before."""

    name: str
    config: GPT2Config
    weights: Weights | None
    where: dict
    micro_steps: int
    steps: int
    warmup: int

    @contextlib.contextmanager
    def runner(self):
        """A Runner on a fresh model. Raises OutOfMemory with the flags that would help."""
        try:
            model = make_model(self.config, self.weights, self.where)
        except OutOfMemory as error:
            raise OutOfMemory(out_of_memory(error, self.where, planner(self.config, self.where))) from None
        with model:
            yield Runner(model, self.micro_steps)

    def rounds(self, kernels):
        """Steps that measure() will take, for a progress bar."""
        return self.warmup + 2 * self.steps + (self.warmup + self.steps + 1 if kernels else 0)


def measure(session, kernels=False, best=False, tick=lambda: None):
    """The profile, a dict as document.py keeps it.

    kernels: time them through CUPTI; where that can't be, a note says why and spans stand for them. best:
    measure the device's ceilings now and keep them; else those kept before are used. tick: called after each step.
    """
    library, ordinal, _ = _native.choose(session.where["device"])
    plan_of, level = planner(session.config, session.where), resolved(session.where).recompute
    plans = [vars(plan_of(session.where["batch"], each)) for each in range(3)]
    with session.runner() as runner:
        runner.run(session.warmup, tick)
        plain = runner.run(session.steps, tick)
        recorded = []
        for _ in range(session.steps):
            recorded.append(since_first(runner.record()))
            tick()
        engine, device = runner.model.options, runner.model.device_info
        notes = [*(session.weights.notes if session.weights else ()), *runner.model.notes()]
        shape = Shape.of(session.config, engine, runner.distinct_tokens)
    # the step of median length stands for all in the pictures
    shown = sorted(recorded, key=lambda spans: bounds(spans)[1])[(len(recorded) - 1) // 2]
    notes += remarks(shown)
    op_times, found = measured.op_times_from_spans(recorded), None
    if kernels:
        try:
            if library.backend == "cpu":
                raise Unavailable("the CPU engine runs no kernels")
            op_times, found, more = profile_kernels(session.runner, session.steps, session.warmup, tick)
            notes += more
        except Unavailable as error:
            notes.append(f"{error}; times are those of spans")
    arithmetic = arithmetic_of(library, engine)
    conditions = document.conditions(library, device)
    key = ceilings.key_of(device, conditions["driver"], library.build_info, arithmetic)
    reached = ceilings.kept(key)
    if best:
        reached = ceilings.measure(library, ordinal, engine.threads or device["multiprocessors"], arithmetic)
        ceilings.keep(key, reached)
    work, calls = step_work(shape, shown, session.micro_steps), Counter(span.name for span in shown)
    device_ms = [ms for ms in plain.device_ms if ms == ms] or [plain.wall_ms]  # NaN where a device can't tell
    return {
        "conditions": conditions,
        "workload": {
            "model": session.name, "config": vars(session.config), "batch": engine.batch, "seq_len": engine.seq_len,
            "micro_steps": session.micro_steps, "precision": arithmetic,
            "tokens": f"random tokens, {shape.distinct} different ones in a micro-batch",
            "engine": {field: getattr(engine, field) for field in ENGINE_FIELDS},
        },
        "step": {
            "ms": statistics.median(device_ms), "low": min(device_ms), "high": max(device_ms), "count": len(device_ms),
            "wall_ms": plain.wall_ms, "recorded_ms": bounds(shown)[1] / 1e3,
        },
        "spans": document.span_dicts(shown), "analysis": analyse(shown),
        "ops": measured.op_rows(op_times, work, calls, reached), "kernels": found, "ceilings": reached,
        "memory": {
            "recompute": level, "device_total": plans[level]["device_total"],
            "plans": [{part: plan[part] for part in (*memory.PARTS, "total")} for plan in plans],
        },
        "notes": notes,
    }  # fmt: skip


def arithmetic_of(library, engine):
    """"bf16", "tf32" or "fp32": what matrix products run in; a CPU has no TF32, whatever the switch says."""
    if library.backend == "cpu":
        return "fp32"
    return peaks.arithmetic(options.word_of("precision", engine.precision), engine.tf32)


def remarks(recorded):
    """What is odd about a recorded step, as sentences."""
    found = []
    unknown = measured.unknown_ops(recorded)
    if unknown:
        found.append(f"ops without an entry in op_costs.py: {', '.join(unknown)}")
    if not any(span.name == "adamw" for span in recorded):
        found.append("the step has more spans than the engine records: its end is missing from the timeline")
    return found

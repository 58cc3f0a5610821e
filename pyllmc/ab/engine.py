"""A side that is this engine: blocks of steps on a model."""

import statistics
import time
from dataclasses import dataclass, field

from .. import _native, options
from ..gpt2 import GPT2
from ..inspection import c_options
from .variants import LAG, LIBRARY

LAG_ON_GPU = 2
LEFT_OUT = ("device", "rank", "world", "comm_id", "zero_stage", "stress", "drop_edge", "slots", "results", "seed")


@dataclass
class Block:
    """A run of steps that was timed. step_ms: of each step, by the side's own clock. wall_ms: of one step, the
    whole block divided by its steps. device_ms: of each step between events on the device, [] if unknown.
    host_us: microseconds a step until the call that enqueues it returned, None if unknown."""

    step_ms: list
    wall_ms: float
    device_ms: list = field(default_factory=list)
    host_us: float | None = None


class EngineSide:
    """One variant of this engine. open(), any number of block(), close(), and again.

    losses: {update, from 0: loss} since the weights were last fresh. started_s: seconds that open() took.
    """

    clock = "host clock, one wait at the end of a block"
    resolution_ms = 0.0

    def __init__(self, variant, workload, where, settle, warmup):
        self.variant, self.label = variant, variant.label
        self._workload, self._settle, self._warmup = workload, settle, warmup
        self._options = {**where, **variant.options}
        if variant.library:
            self._options["library"] = variant.library
        self.batch, self.seq_len = self._options["batch"], self._options["seq_len"]
        self.tokens = self.batch * self.seq_len
        self._hyper = {"learning_rate": workload.learning_rate, **variant.hyper}
        self._model, self.losses, self.started_s, self.notes = None, {}, None, []
        self.facts = self._facts()

    def plan(self):
        """The llmc_memory of its model; raises what the engine says against its options."""
        return GPT2.memory_plan(self._workload.config, **self._options)

    def resolved(self):
        """The llmc_options that its model starts from."""
        return resolved(self._options)

    def open(self):
        """Make the model, with the workload's weights, and warm it up. Nothing happens if it is open."""
        if self._model is not None:
            return
        began = time.perf_counter()
        self._model = self._workload.make_model(self._options)
        self._batches = self._workload.batches(self.batch, self.seq_len)
        backend = self._model.library.backend
        self._lag = self._lag_of(backend, self._model.options.results)
        self._counts_host = backend != "cpu"  # a CPU's call returns when the step is done
        self._run(self._warmup)
        self._model.synchronize()
        self.started_s = time.perf_counter() - began
        self.notes += [note for note in self._model.notes() if note not in self.notes]
        self.facts = self._facts(self._model)

    def close(self):
        if self._model is not None:
            self._model.close()
            self._model = None

    def block(self, steps):
        """`steps` timed steps, after a few that bring clocks and caches back to this side's own."""
        self._run(self._settle)
        self._model.synchronize()
        began = time.perf_counter()
        ends, device, host = self._run(steps)
        self._model.synchronize()
        wall = time.perf_counter() - began
        step_ms = [1e3 * (end - start) for start, end in zip([began, *ends], ends, strict=False)]
        known = [ms for ms in device if ms == ms]
        return Block(step_ms, 1e3 * wall / steps, known, 1e6 * host / steps if self._counts_host else None)

    def _run(self, steps):
        """(when each step's result was there, its device_ms, seconds inside the calls that enqueue)."""
        model, pending, ends, device, host = self._model, [], [], [], 0.0

        def read():
            update, handle = pending.pop(0)
            result = handle.result()
            ends.append(time.perf_counter())
            device.append(result.device_ms)
            self.losses.setdefault(update, result.loss)

        for _ in range(steps):
            inputs, targets = self._batches[model.updates % len(self._batches)]
            called = time.perf_counter()
            pending.append((model.updates, model.step(inputs, targets, **self._hyper)))
            host += time.perf_counter() - called
            if len(pending) > self._lag:
                read()
        while pending:
            read()
        return ends, device, host

    def _lag_of(self, backend, results):
        if self.variant.lag is not None:
            return self.variant.lag
        return min(LAG_ON_GPU, results - 1) if backend != "cpu" else 0

    def _facts(self, model=None):
        settled = model.options if model else self.resolved()
        facts = {name: getattr(settled, name) for name in options.names("llmc_options") if name not in LEFT_OUT}
        facts.update((name, options.word_of(name, facts[name])) for name in options.WORDS)
        library, _, _ = _native.choose(self._options["device"], self._options.get("library"))
        defaults = library.ffi.new("llmc_hyper *")
        library.plain("llmc_hyper_default", defaults)
        hyper = {**_native.as_dict(library.ffi, defaults[0]), **self._hyper}
        del hyper["step"]
        facts = {"backend": library.backend, "parameters": self._workload.config.num_params, **facts, **hyper}
        return {**facts, LAG: self._lag_of(library.backend, settled.results), LIBRARY: str(library.path)}


def resolved(arguments):
    """The llmc_options of GPT2's keyword arguments, C's defaults included."""
    given = dict(arguments)
    library, ordinal, _ = _native.choose(given.pop("device", "auto"), given.pop("library", None))
    return c_options(library, ordinal, given)[0]


def median(values):
    """The median, or None of nothing."""
    return statistics.median(values) if values else None

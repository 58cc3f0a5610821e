"""The library of tests/emulation, and training on it or on the CPU: the lanes without a GPU.

`engine.Engine(..., backend=emulated.load())` is a model on it. How its streams are served is chosen before, by
`serve`: a thread for each, or work in turns that a seed draws, which is the same every time for one host thread.
"""

import hashlib
import queue
import threading
from collections import deque

import engine
import oracle
from engine import ADAM_M, ADAM_V, PARAM, Engine, ffi, tiny_config

from pyllmc import _find, _native
from pyllmc.errors import LibraryNotFound

NAME = "emulated"
THREADS = -1
PATH = _find.CHECKOUT / "build" / "libllmc_emulated.so"
SMALL = tiny_config(channels=16, vocab=61, context=8)
B, T = 2, 8
HYPER = {"learning_rate": 1e-2, "weight_decay": 0.1, "grad_clip": 1.0}
KINDS = (PARAM, ADAM_M, ADAM_V)
BATCHES = [oracle.random_batch(SMALL, B, T, seed) for seed in range(64)]

ffi.cdef("""
    void emulated_reset(void);
    void emulated_schedule(int64_t seed);
    void emulated_log(void);
    void emulated_fail(const char *call, int nth);
    void emulated_slow_captures(int microseconds);
    const char *emulated_rules(void);
    const char *emulated_break(const char *rule);
    const char *emulated_calls(void);
    const char *emulated_violations(void);
""")


def load():
    """The name under which tests/engine.py then has the library."""
    if NAME not in engine._libraries:
        if not PATH.is_file():
            raise LibraryNotFound(f"no {PATH} (make harness builds it)")
        with _native._idle_threads_sleep():
            engine._libraries[NAME] = _find.open_with_dependencies(PATH, ffi.dlopen)
    return NAME


def serve(seed):
    """How the streams of models made from now on are served; nothing is logged, and no call fails."""
    load()
    lib = engine._libraries[NAME]
    lib.emulated_reset()
    lib.emulated_schedule(seed)
    return lib


def violations():
    return ffi.string(engine._libraries[NAME].emulated_violations()).decode().splitlines()


def calls():
    """The runtime's calls and the ops, eager or "captured ...", since emulated_log."""
    return ffi.string(engine._libraries[NAME].emulated_calls()).decode().splitlines()


def make(backend=NAME, **options):
    return Engine(SMALL, B, T, backend, oracle.random_params(SMALL), threads=1, **{"results": 4, **options})


def notes(model):
    return ffi.string(model.lib.llmc_model_notes(model.handle)).decode()


def state(model):
    """Digest of weights and moments."""
    found = hashlib.sha256()
    for kind in KINDS:
        for value in model.read(kind).values():
            found.update(value)
    return found.hexdigest()


class Feed:
    """Slots in the order of the batches: `ahead` of the step in the same thread, or from a loader's thread."""

    def __init__(self, model, batches, ahead, loader):
        self.model, self.batches, self.ahead = model, iter(batches), ahead
        self.waiting, self.slots, self.thread = deque(), queue.Queue(), None
        if loader:
            self.thread = threading.Thread(target=self._load)
            self.thread.start()

    def _load(self):
        try:
            for batch in self.batches:
                self.slots.put(self.model.submit(*batch))
        except engine.EngineError as error:
            self.slots.put(error)

    def __next__(self):
        if self.thread:
            slot = self.slots.get(timeout=60)
            if isinstance(slot, Exception):
                raise slot
            return slot
        while len(self.waiting) < max(self.ahead, 1) and (batch := next(self.batches, None)) is not None:
            self.waiting.append(self.model.submit(*batch))
        return self.waiting.popleft()

    def close(self):
        if self.thread:
            self.thread.join()


def enqueue(model, feed, first, until, micro_steps=1, lag=0):
    """(loss, gradient norm) of each update, taken `lag` updates later."""
    pending, results = deque(), []
    for step in range(first, until):
        for i in range(micro_steps):
            model.call("micro_step", next(feed), i, micro_steps)
        pending.append(model.update(step=step + 1, **HYPER))
        if len(pending) > lag:
            results.append(model.result(pending.popleft()))
    results += [model.result(ticket) for ticket in pending]
    return [(r.loss, r.grad_norm) for r in results]


def train(backend, steps, micro_steps=1, lag=0, ahead=2, loader=False, **options):
    """(losses and norms, digest of the state, notes) of a run."""
    batches = [BATCHES[i % len(BATCHES)] for i in range(steps * micro_steps)]
    with make(backend, **options) as model:
        feed = Feed(model, batches, ahead, loader)
        try:
            results = enqueue(model, feed, 0, steps, micro_steps, lag)
        finally:
            feed.close()
        return results, state(model), notes(model)

"""Batches from a token loader into the engine's slots, by a thread of its own or on demand."""

from .errors import ResultTimeout, StateError
from .prefetch import Prefetcher

WAKE_S = 0.1  # how long the thread waits for a slot before it looks whether it is still wanted


class Feed:
    """get() returns (submitted Slot, LoaderState after it) in the loader's order.

    ahead: with True a thread fills and submits slots while earlier ones are in use, one slot being left for
    others, such as an evaluation; with False each get() fills one. repeat: n > 0 starts the data anew every
    n batches, which is training on the same n for ever. close() gives unused slots back.

    late: get() leaves the thread asleep while a batch is in reserve, for two threads of Python hold each other up; call
    refill() once the step is on its way. That is for a GPU; a CPU's step waits in the engine, with Python idle.
    """

    def __init__(self, model, loader, *, ahead=True, repeat=0, late=False):
        self._model, self._loader, self._repeat, self._late = model, loader, repeat, late
        self._served, self._stopping, self._unused = 0, False, []
        self._prefetcher = Prefetcher(self._fill, model.options.slots - 1) if ahead else None

    def get(self):
        slot, state = self._prefetcher.get(wake=not self._late) if self._prefetcher else self._fill()
        self._unused.remove(slot)
        return slot, state

    def refill(self):
        """Let a late thread prepare the next batch now; otherwise this does nothing."""
        if self._late and self._prefetcher:
            self._prefetcher.wake()

    def close(self):
        """End the thread and give back the slots that nobody took. Twice is fine."""
        self._stopping = True
        if self._prefetcher:
            self._prefetcher.close()
        while self._unused:
            slot = self._unused.pop()
            if not self._model.closed:
                slot.release()

    def _fill(self):
        if self._repeat and self._served % self._repeat == 0:
            self._loader.reset()
        with self._acquire() as slot:
            self._loader.next_into(slot.inputs, slot.targets)
            slot.submit()
        self._served += 1
        self._unused.append(slot)
        return slot, self._loader.state()

    def _acquire(self):
        while not self._stopping:
            try:
                return self._model.acquire_slot(timeout=WAKE_S)
            except ResultTimeout:
                continue
        raise StateError("the feed is closed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

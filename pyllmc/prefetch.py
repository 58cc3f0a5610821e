"""One thread that prepares the next things while the last ones are used."""

import os
import threading
import weakref
from collections import deque

from .errors import InvalidArgument, StateError


class Prefetcher:
    """Calls `fill()` in a background thread and hands out its results in order, at most `depth` ahead.

    `fill` ends the sequence by raising StopIteration; any other exception reaches the consumer in its place
    in the order, and again at every later call. Use it as an iterator or call `get()`; close it, or use it
    in a with block. The thread is a daemon and holds no reference to the Prefetcher, so that a forgotten one
    neither keeps the process alive nor itself.
    """

    def __init__(self, fill, depth):
        if depth < 1:
            raise InvalidArgument(f"depth must be at least 1, got {depth}")
        self._queue = _Queue(depth)
        self._process = os.getpid()
        self._thread = threading.Thread(target=_work, args=(fill, self._queue), name="prefetch", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._queue.stop)

    def get(self, wake=True):
        """The next result; waits for it. Ctrl-C ends the wait.

        wake=False leaves the thread asleep until wake() is called or nothing is left in reserve: what `fill` does in
        Python would hold up a caller that has something urgent to do now.
        Raises what `fill` raised, and StateError after close() or in a forked child, which has no thread.
        """
        if os.getpid() != self._process:
            raise StateError(
                "this prefetcher's thread lives in the parent process: create one after the fork"
            )
        return self._queue.get(wake)

    def wake(self):
        """Let the thread fill what get(wake=False) made room for."""
        self._queue.make_room()

    def __iter__(self):
        return self

    __next__ = get

    def close(self, timeout=None):
        """Drop waiting results and end the thread; twice is fine. True when the thread has ended.

        A `fill` in progress is waited for, up to `timeout` seconds: one that waits itself must be woken by
        the caller.
        """
        self._finalizer()
        if os.getpid() == self._process and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Queue:
    """Results between the two threads. One condition: nobody polls."""

    def __init__(self, depth):
        self.depth = depth
        self.results = deque()
        self.taken = 0  # results whose room was not given back yet
        self.error = None  # comes after all results
        self.stopped = False
        self.changed = threading.Condition()

    def stop(self):
        with self.changed:
            self.stopped = True
            self.results.clear()
            self.changed.notify_all()

    def wait_for_room(self):
        """True when there is room for one more result, False when nobody wants any."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or len(self.results) + self.taken < self.depth)
            return not self.stopped

    def put(self, result):
        with self.changed:
            if not self.stopped:
                self.results.append(result)
                self.changed.notify_all()

    def fail(self, error):
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def get(self, wake):
        with self.changed:
            if not self.results:
                self.make_room()
            self.changed.wait_for(lambda: self.stopped or self.results or self.error)
            if self.stopped:
                raise StateError("the prefetcher is closed")
            if not self.results:
                raise self.error
            result = self.results.popleft()
            self.taken += 1
            if wake or not self.results:
                self.make_room()
            return result

    def make_room(self):
        with self.changed:
            self.taken = 0
            self.changed.notify_all()


def _work(fill, queue):
    while queue.wait_for_room():
        try:
            queue.put(fill())
        except BaseException as error:  # handed over, not swallowed
            queue.fail(error)
            return

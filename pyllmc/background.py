"""Work for the other cores, with a bound on how much of it waits."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor

MAX_THREADS = 8


class Background:
    """run(function, *arguments) does it in one of a few threads; leaving the `with` block waits for all.

    For NumPy on large arrays, which lets go of the interpreter lock. At most two jobs per thread are waiting
    or running: then run() waits for the oldest, so that their arguments don't pile up in memory. What a job
    raises is raised by a later run() or at the end of the block. threads: default the usable cores, up to 8.
    """

    def __init__(self, threads=None):
        self._threads = threads or max(1, min(MAX_THREADS, _usable_cores()))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="background")
        self._jobs = deque()

    def run(self, function, *arguments):
        if len(self._jobs) >= 2 * self._threads:
            self._jobs.popleft().result()
        self._jobs.append(self._pool.submit(function, *arguments))

    def __enter__(self):
        return self

    def __exit__(self, exception, *_):
        try:
            while self._jobs and not exception:
                self._jobs.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)


def _usable_cores():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system tells
        return os.cpu_count() or 1

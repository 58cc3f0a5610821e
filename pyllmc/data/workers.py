"""Ranges to tokens in several processes, results in the order of the ranges, few of them in memory."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from ..errors import StateError
from .encode import encode_range

AHEAD = 3  # ranges a process may have waiting or done before the first of them is taken

_recipe = None  # of this process, if it is a worker: sent once and not with each range


def cores():
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def encoder(recipe, processes):
    """A function that turns an iterable of (Source, Range) into an iterator of (Range, Encoded), in order.

    processes: 1 encodes in this one. Raises StateError where a worker was ended from outside.
    """
    if processes == 1:
        yield lambda parts: ((part, encode_range(recipe, source, part)) for source, part in parts)
        return
    # spawn: a fork would copy locks that other threads hold, and engines that don't survive it
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, start_worker, (recipe,))
    try:
        yield lambda parts: in_order(pool, parts, processes * AHEAD)
    except BrokenProcessPool:
        raise StateError(
            "a process that encodes ended without a word, perhaps for want of memory: try fewer --processes; "
            "the same command goes on from the last shard"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(pool, parts, window):
    waiting = deque()
    for source, part in parts:
        with interrupts_held():
            future = pool.submit(encode_in_worker, source, part)
        waiting.append((part, future))
        if len(waiting) >= window:
            part, future = waiting.popleft()
            yield part, future.result()
    while waiting:
        part, future = waiting.popleft()
        yield part, future.result()


@contextlib.contextmanager
def interrupts_held():
    """A worker that is started in here inherits it: Ctrl-C must not meet it before it has said what it does then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(recipe):
    global _recipe
    _recipe = recipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the others in order
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent():
    """A parent that was killed can't end its workers, which would wait for ranges for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def encode_in_worker(source, part):
    return encode_range(_recipe, source, part)

"""Ranges to tokens in several processes, results in the order of the ranges, few of them in memory."""

import contextlib
import multiprocessing
import os
import queue
import signal
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker

from ..errors import StateError
from .encode import encode_range

AHEAD = 3  # ranges a process may have waiting or done before the first of them is taken


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
    workers, idle = [], queue.SimpleQueue()

    def encode(source, part):
        try:
            worker = idle.get_nowait()
        except queue.Empty:  # there are no more of them than threads
            worker = Worker(recipe)
            workers.append(worker)
        try:
            return worker.encode(source, part)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(processes)  # a thread for each worker, which waits for its answers
    try:
        yield lambda parts: in_order(threads, encode, parts, processes * AHEAD)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(workers):  # lets go those that wait for an answer
            worker.end()
        threads.shutdown()
        for worker in workers:  # one that was just being started
            worker.end()


def in_order(threads, encode, parts, window):
    waiting = deque()
    for source, part in parts:
        waiting.append((part, threads.submit(encode, source, part)))
        if len(waiting) >= window:
            part, future = waiting.popleft()
            yield part, future.result()
    while waiting:
        part, future = waiting.popleft()
        yield part, future.result()


class Worker:
    """A process that encodes. It has a pipe of its own, which ends with it: a worker that is killed in the midst of an
    answer is noticed (in ProcessPoolExecutor, where all share one, the rest of the answer is waited for), and one whose
    parent was killed ends."""

    def __init__(self, recipe):
        # spawn: a fork would copy locks that other threads hold, and engines that don't survive it
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, recipe), daemon=True)
        with interrupts_held():
            self._process.start()
        theirs.close()

    def encode(self, source, part):
        """What encode_range returns or raises; StateError where the process is gone."""
        try:
            self._pipe.send((source, part))
            failed, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise StateError(
                "a process that encodes ended without a word, perhaps for want of memory: try fewer --processes; "
                "the same command goes on from the last shard"
            ) from None
        if failed:
            raise answer
        return answer

    def end(self):
        self._process.kill()  # it writes no files
        self._process.join()


@contextlib.contextmanager
def interrupts_held():
    """A worker that is started in here inherits it: Ctrl-C must not meet it before it has said what it does then."""
    resource_tracker.ensure_running()  # what the first start would do in here, and let signals through again after it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(pipe, recipe):
    """Encode what comes through the pipe, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the others
    with contextlib.suppress(EOFError, OSError):
        while True:
            source, part = pipe.recv()
            try:
                answer = False, encode_range(recipe, source, part)
            except Exception as error:
                answer = True, error
            pipe.send(answer)

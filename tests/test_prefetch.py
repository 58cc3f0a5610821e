"""The background thread: order, bounds, errors, and an end that always comes."""

import gc
import os
import threading
import weakref

import pytest

from pyllmc.errors import InvalidArgument, StateError
from pyllmc.prefetch import Prefetcher


def counting(limit=None):
    numbers = iter(range(limit)) if limit is not None else iter(int, 1)
    return lambda: next(numbers)


def test_results_come_in_order_and_end():
    with Prefetcher(counting(100), 3) as prefetcher:
        assert list(prefetcher) == list(range(100))
        with pytest.raises(StopIteration):
            prefetcher.get()


@pytest.mark.parametrize("depth", [1, 4])
def test_never_more_than_depth_ahead(depth):
    calls, reached = [], threading.Semaphore(0)

    def fill():
        calls.append(1)
        reached.release()
        return len(calls)

    with Prefetcher(fill, depth) as prefetcher:
        for taken in range(5):
            for _ in range(depth if taken == 0 else 1):
                assert reached.acquire(timeout=10)
            assert not reached.acquire(timeout=0.02)  # the thread now waits for room
            assert len(calls) == depth + taken
            assert prefetcher.get() == taken + 1


def test_the_thread_sleeps_on_while_something_is_in_reserve():
    calls, reached = [], threading.Semaphore(0)

    def fill():
        calls.append(1)
        reached.release()
        return len(calls)

    with Prefetcher(fill, 2) as prefetcher:
        assert reached.acquire(timeout=10) and reached.acquire(timeout=10)
        assert prefetcher.get(wake=False) == 1
        assert not reached.acquire(timeout=0.05)  # one is left
        prefetcher.wake()
        assert reached.acquire(timeout=10) and not reached.acquire(timeout=0.02)
        assert [prefetcher.get(wake=False), prefetcher.get(wake=False)] == [2, 3]  # the last one wakes it
        assert reached.acquire(timeout=10) and reached.acquire(timeout=10)
        assert not reached.acquire(timeout=0.02) and len(calls) == 5
        assert [prefetcher.get(wake=False) for _ in range(20)] == list(range(4, 24))


def test_results_before_an_error_come_first_and_the_error_stays():
    numbers = iter([1, 2])

    def fill():
        try:
            return next(numbers)
        except StopIteration:
            raise ValueError("bad shard") from None

    prefetcher = Prefetcher(fill, 5)
    assert [prefetcher.get(), prefetcher.get()] == [1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="bad shard"):
            prefetcher.get()
    assert prefetcher.close()


def test_close_ends_a_thread_that_waits_for_room_and_is_idempotent():
    prefetcher = Prefetcher(counting(), 2)
    prefetcher.get()
    assert prefetcher.close(timeout=10)
    assert prefetcher.close(timeout=10)
    with pytest.raises(StateError, match="closed"):
        prefetcher.get()


def test_close_wakes_a_consumer():
    inside, proceed = threading.Event(), threading.Event()

    def fill():
        inside.set()
        proceed.wait(10)
        return 1

    prefetcher = Prefetcher(fill, 1)
    outcome = []

    def consume():
        try:
            outcome.append(prefetcher.get())
        except StateError as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert inside.wait(10)
    assert not prefetcher.close(timeout=0)  # fill is still running
    consumer.join(10)
    assert not consumer.is_alive() and isinstance(outcome[0], StateError)
    proceed.set()
    assert prefetcher.close(timeout=10)


def test_a_forgotten_prefetcher_ends_its_thread():
    prefetcher = Prefetcher(counting(), 1)
    thread, gone = prefetcher._thread, weakref.ref(prefetcher)
    assert thread.daemon
    del prefetcher
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_waiting_for_ever():
    with Prefetcher(counting(), 1) as prefetcher:
        prefetcher.get()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                prefetcher.get()
            except StateError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_depth_is_checked():
    with pytest.raises(InvalidArgument, match="depth"):
        Prefetcher(counting(), 0)

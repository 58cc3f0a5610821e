"""Work in other threads: all of it done, no more waiting than promised, errors not lost."""

import threading

import pytest

from pyllmc.background import Background


def test_everything_is_done_at_the_end():
    done = []
    with Background(threads=3) as background:
        for number in range(100):
            background.run(done.append, number)
    assert sorted(done) == list(range(100))


def test_jobs_do_not_pile_up():
    started, gate = [], threading.Event()

    def job(number):
        started.append(number)
        gate.wait(30)

    submitted = []
    with Background(threads=2) as background:

        def submit():
            for number in range(10):
                background.run(job, number)
                submitted.append(number)

        thread = threading.Thread(target=submit)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and len(submitted) <= 4 and len(started) <= 2
        gate.set()
        thread.join(30)
    assert len(started) == 10


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        with Background(threads=1) as background:
            background.run(lambda: 1 / 0)
    with pytest.raises(KeyError):  # the block's own error is not hidden by a job's
        with Background(threads=1) as background:
            background.run(lambda: 1 / 0)
            raise KeyError

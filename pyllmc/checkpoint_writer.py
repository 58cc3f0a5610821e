"""Checkpoints written beside training: the device keeps a snapshot, a thread brings it to disk."""

import contextlib
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from . import run_state, rundir
from .errors import OutOfMemory, StateError, sentence

LONG_WAIT_S = 1.0  # a save that waited so long for the one before is worth a remark
WAIT_S = 0.1  # longest single wait
GRACE_S, LOCK_S, END_S = 0.5, 0.2, 0.2  # together less than the second in which Ctrl-C is answered


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: path of its model file; held_ms: how long the caller of save waited; write_s: how
    long writing took, for the most part beside training."""

    step: int
    path: Path
    held_ms: float
    write_s: float


class CheckpointWriter:
    """Saves `model` into `folder`, one checkpoint at a time.

    save() returns when the state is copied aside; where the copy doesn't fit into the device's memory, it writes
    first, and says so once. A checkpoint that can't be written, as on a full disk, is a note, and nothing of it is
    left; any other failure is raised by the next call. close() in all cases.
    """

    def __init__(self, folder, model):
        self._folder, self._model = Path(folder), model
        self._job, self._complete, self._notes, self._beside = None, [], [], True

    def save(self, step, loader_state):
        """Begin the checkpoint of `step`. Waits for the one before, should that be under way still."""
        began = time.perf_counter()
        before = self._job and self._job.step
        self._wait()
        if time.perf_counter() - began > LONG_WAIT_S:
            waited = time.perf_counter() - began
            self._notes.append(f"the checkpoint of step {step} waited {waited:.1f} s for that of step {before} to be written")
        snapshot = self._snapshot()
        if snapshot is None:
            job = _Job(self._folder, step, self._model, loader_state)
            job.write()
            job.held_s = time.perf_counter() - began
            self._judge(job)
            return
        self._job = _Job(self._folder, step, snapshot, loader_state)
        self._job.start()
        self._job.held_s = time.perf_counter() - began

    def save_now(self, step, loader_state):
        """Write the checkpoint of `step` and wait for it, whatever became of the one before. Raises OSError where it
        can't be written."""
        try:
            self._wait()
        finally:
            began = time.perf_counter()
            path = run_state.save(self._folder, step, self._model, loader_state)
            seconds = time.perf_counter() - began
            self._complete.append(Saved(step, path, seconds * 1e3, seconds))

    def complete(self):
        """The checkpoints that have become complete since the last call, as Saved."""
        if self._job and self._job.ended:
            self._wait()
        found, self._complete = self._complete, []
        return found

    def notes(self):
        """Remarks for the user since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self, because=None):
        """End the thread. because: the type of the exception that ends the run, if one does.

        A save under way is completed, except that an interruption gives it half a second: then it is abandoned,
        all its files are taken away, and the checkpoint before stays in charge. A thread that is deep in the
        system's write calls then ends by itself when it comes back.
        """
        job, self._job = self._job, None
        if job is None:
            return
        interrupted = because is not None and not issubclass(because, Exception)
        try:
            job.join(GRACE_S if interrupted else math.inf)
        finally:  # a second interruption ends the wait
            if not job.ended:
                job.abandon()
        if job.ended and not job.abandoned:
            self._judge(job, because is None)

    def _snapshot(self):
        if not self._beside:
            return None
        try:
            return self._model.snapshot()
        except (OutOfMemory, StateError) as error:
            self._beside = False
            self._notes.append(f"training waits while checkpoints are written: {error}")
            return None

    def _wait(self):
        if self._job is None:
            return
        self._job.join()
        job, self._job = self._job, None
        self._judge(job)

    def _judge(self, job, may_raise=True):
        if job.error is None:
            self._complete.append(Saved(job.step, job.path, job.held_s * 1e3, job.write_s))
        elif isinstance(job.error, (OSError, MemoryError)) or not may_raise:
            self._notes.append(f"the checkpoint of step {job.step} could not be written: {sentence(job.error)}")
        else:
            raise job.error


class _Job:
    """The writing of one checkpoint. Either it becomes complete or it is abandoned, never both."""

    def __init__(self, folder, step, source, loader_state):
        self.folder, self.step, self.source, self.loader_state = folder, step, source, loader_state
        self.error = self.path = None
        self.held_s = self.write_s = 0.0
        # a daemon: the interpreter's exit doesn't wait for a disk that hangs
        self._thread = threading.Thread(target=self._work, name="checkpoint", daemon=True)
        self._over, self.abandoned = threading.Event(), False
        self._declaring = threading.Lock()

    def start(self):
        self._thread.start()

    def write(self):
        """In this thread. What is raised is kept, but for an interruption."""
        began = time.perf_counter()
        try:
            self.path = run_state.save(
                self.folder, self.step, self.source, self.loader_state, declare=self._declare, tick=self._tick
            )
        except Exception as error:
            self.error = error
        self.write_s = time.perf_counter() - began

    @property
    def ended(self):
        return self._over.is_set()

    def join(self, seconds=math.inf):
        """Wait for the thread's end, at most so long. Single waits are short, so that Ctrl-C is heard whichever thread
        the signal came to. (Not Thread.join first: one that Ctrl-C ends takes the thread for ended, too.)"""
        deadline = time.monotonic() + seconds
        while not self._over.wait(max(0.0, min(WAIT_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return
        self._thread.join()

    def abandon(self):
        """Keep it from becoming complete and take its files away, unless it is being declared at this moment."""
        if not self._declaring.acquire(timeout=LOCK_S):
            return
        self.abandoned = True
        self._declaring.release()
        self.join(END_S)
        with contextlib.suppress(OSError):
            run_state.discard(self.folder, self.step)

    def _work(self):
        try:
            with self.source:
                self.write()
        finally:
            self._over.set()

    def _tick(self, _):
        if self.abandoned:
            raise run_state.Abandoned(f"the checkpoint of step {self.step} was abandoned")

    def _declare(self, folder, step):
        with self._declaring:
            self._tick(0)
            rundir.mark_complete(folder, step)

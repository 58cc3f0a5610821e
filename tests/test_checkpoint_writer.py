"""Checkpoints written beside training: what is in them, and what becomes of one that fails or is interrupted."""

import errno
import os
import signal
import threading
import time

import pytest
from test_native import run_python
from test_trainer import PLAIN, B, Recorder, T, everything, make, run, shards, train_data  # noqa: F401

from pyllmc import atomic, checkpoint_writer, run_state
from pyllmc.callbacks import Callbacks
from pyllmc.checkpoint_writer import CheckpointWriter
from pyllmc.errors import OutOfMemory, StateError
from pyllmc.gpt2 import GPT2
from pyllmc.optimizer_state import LoaderState
from pyllmc.rundir import find_latest_complete, read_json_log
from pyllmc.snapshot import Snapshot
from pyllmc.trainer import Trainer


def contents(folder, step):
    """{name: bytes} of a checkpoint's files."""
    return {path.name: path.read_bytes() for path in folder.glob(f"*_{step:08d}*")}


def no_room(model):
    raise OutOfMemory("no room")


class Gate:
    """Holds the writing of state files until it is opened; says when one has begun."""

    def __init__(self, monkeypatch):
        self.begun, self.open = threading.Event(), threading.Event()
        self._real = run_state.write_state
        monkeypatch.setattr(run_state, "write_state", self._write)

    def _write(self, path, state):
        self.begun.set()
        assert self.open.wait(60)
        self._real(path, state)


def test_a_checkpoint_is_of_its_step_whatever_follows(shards, tmp_path, monkeypatch):  # noqa: F811
    """While step 4 is written, steps 4 to 11 are trained: the files are those of a run that waited."""
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "snapshot", no_room)
        waiting = run(shards, run_dir=tmp_path / "waiting", checkpoint_every=4, steps=12)
    gate = Gate(monkeypatch)

    class Opens(Recorder):
        def on_step(self, report):
            super().on_step(report)
            if report.step == 6:
                assert gate.begun.wait(60) and find_latest_complete(tmp_path / "beside").step is None
                gate.open.set()

    with train_data(shards) as loader, make() as model:
        recorder = Opens()
        Trainer(model, loader, callbacks=[recorder], run_dir=tmp_path / "beside", checkpoint_every=4, **{**PLAIN, "steps": 12}).run()
        assert everything(model) == waiting[2]
    assert recorder.events.index(("saved", 4)) > recorder.events.index(("step", 6))
    assert [step for kind, step in recorder.events if kind == "saved"] == [4, 8, 12]
    for step in (4, 8, 12):
        beside = contents(tmp_path / "beside", step)
        assert len(beside) == 4 and beside == contents(tmp_path / "waiting", step), step
    assert not [note for note in recorder.notes if "waits" in note]
    assert any("training waits while checkpoints are written: no room" in note for note in waiting[1].notes)


def test_what_a_save_cost_is_logged(shards, tmp_path):  # noqa: F811
    run(shards, run_dir=tmp_path, checkpoint_every=2, steps=5)

    def logged():
        return [record for record in read_json_log(tmp_path / "log.jsonl") if record["kind"] == "checkpoint"]

    assert [record["step"] for record in logged()] == [2, 4, 5]
    assert all(record["held_ms"] >= 0 and record["write_s"] >= 0 for record in logged())
    run(shards, make("zeros"), run_dir=tmp_path, resume=True, steps=6)  # cuts the logs at step 5, whose record stays
    assert [record["step"] for record in logged()] == [2, 4, 5, 6]


def test_one_at_a_time(tmp_path, monkeypatch):
    """A second checkpoint waits for the first, with a remark when that took long."""
    monkeypatch.setattr(checkpoint_writer, "LONG_WAIT_S", 0)
    gate = Gate(monkeypatch)
    with make() as model:
        writer = CheckpointWriter(tmp_path, model)
        writer.save(1, LoaderState(0, 0))
        assert gate.begun.wait(60) and writer.complete() == []
        threading.Timer(0.05, gate.open.set).start()
        writer.save(2, LoaderState(0, 0))
        assert [saved.step for saved in writer.complete()][:1] == [1]
        writer.close()
        assert find_latest_complete(tmp_path).step == 2
        notes = writer.notes()
    assert any("step 2 waited" in note and "that of step 1" in note for note in notes), notes


@pytest.mark.parametrize("beside", [True, False])
def test_a_full_disk_in_the_midst_is_a_note(shards, tmp_path, monkeypatch, beside):  # noqa: F811
    real = os.fsync
    failed = []

    def full(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if ".model_00000004" in name:
            failed.append(name)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    if not beside:
        monkeypatch.setattr(GPT2, "snapshot", no_room)
    result, recorder, _ = run(shards, run_dir=tmp_path, checkpoint_every=2, steps=7)
    assert failed and result.status == "finished"
    (note,) = (note for note in recorder.notes if "could not be" in note)
    assert note == f"the checkpoint of step 4 could not be written: {tmp_path}/model_00000004.bin: no space left on the device"
    assert [step for kind, step in recorder.events if kind == "saved"] == [2, 6, 7]
    assert contents(tmp_path, 4) == {} and not list(tmp_path.glob(".*"))


def test_a_full_disk_at_the_end_is_an_error(shards, tmp_path, monkeypatch):  # noqa: F811
    real = os.fsync

    def full(descriptor):
        if ".state_00000005" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/state_00000005_00000.bin'"):
        run(shards, run_dir=tmp_path, checkpoint_every=2, steps=5)
    assert find_latest_complete(tmp_path).step == 4 and not list(tmp_path.glob(".*"))


def test_other_failures_are_raised_at_a_later_step(shards, tmp_path, monkeypatch):  # noqa: F811
    real = run_state.write_state

    def broken(path, state):
        if state.step == 2:
            raise ZeroDivisionError("a fault of ours")
        real(path, state)

    monkeypatch.setattr(run_state, "write_state", broken)
    with pytest.raises(ZeroDivisionError):
        run(shards, run_dir=tmp_path, checkpoint_every=2, steps=4)
    assert contents(tmp_path, 2) == {}


def test_the_last_save_does_not_depend_on_the_one_before(tmp_path, monkeypatch):
    real = run_state.write_state

    def broken(path, state):
        if state.step == 1:
            raise ZeroDivisionError("a fault of ours")
        real(path, state)

    monkeypatch.setattr(run_state, "write_state", broken)
    with make() as model:
        writer = CheckpointWriter(tmp_path, model)
        writer.save(1, LoaderState(0, 0))
        with pytest.raises(ZeroDivisionError):
            writer.save_now(2, LoaderState(0, 0))
        writer.close()
    assert find_latest_complete(tmp_path).step == 2


def test_a_save_under_way_is_completed_when_the_run_fails(shards, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(checkpoint_writer, "GRACE_S", 0)
    gate = Gate(monkeypatch)
    told = []

    class Fails(Callbacks):
        def on_step(self, report):
            if report.step == 3:
                threading.Timer(0.05, gate.open.set).start()
                raise RuntimeError("no more")

        def on_checkpoint(self, step, path):
            told.append(step)

    with train_data(shards) as loader, make() as model, pytest.raises(RuntimeError, match="no more"):
        Trainer(model, loader, callbacks=[Fails()], run_dir=tmp_path, checkpoint_every=2, **PLAIN).run()
    assert find_latest_complete(tmp_path).step == 2 and told == [2]


@pytest.mark.parametrize("name", ["state_00000004_00000.bin", "model_00000004.bin", "extra_00000004.json", "DONE_00000004"])
@pytest.mark.parametrize("hangs", [True, False])
def test_interrupt_while_a_thread_saves(shards, tmp_path, monkeypatch, name, hangs):  # noqa: F811
    """CLI-10: Ctrl-C while the thread is about to rename one of the files. A disk that answers lets the save be
    completed; one that hangs has it abandoned: no file of it stays, not even when the disk answers later."""
    answers, real = threading.Event(), os.replace
    hanging = []

    def replace(source, target):
        if os.path.basename(target) == name:
            hanging.append(threading.current_thread())
            signal.raise_signal(signal.SIGINT)
            assert not hangs or answers.wait(60)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    model = make()
    with pytest.raises(KeyboardInterrupt):
        with train_data(shards) as loader:
            Trainer(model, loader, run_dir=tmp_path, checkpoint_every=2, **{**PLAIN, "steps": 100000}).run()
    if hangs and name.startswith("DONE"):  # being declared: neither taken back nor waited for
        answers.set()
        hanging[-1].join(60)
        assert find_latest_complete(tmp_path).step == 4
    elif hangs:
        assert find_latest_complete(tmp_path).step == 2 and contents(tmp_path, 4) == {}
        assert not list(tmp_path.glob(".*"))
        answers.set()
        hanging[-1].join(60)
        assert find_latest_complete(tmp_path).step == 2 and not list(tmp_path.glob(".*"))
        assert not {"DONE_00000004", "model_00000004.bin"} & contents(tmp_path, 4).keys()
    else:
        assert find_latest_complete(tmp_path).step >= 4 and not list(tmp_path.glob(".*"))
    model.close()


def test_what_is_abandoned_is_not_declared_later(tmp_path, monkeypatch):
    """The thread hangs after its last file and before the marker, while the save is abandoned."""
    hangs, answers, real = threading.Event(), threading.Event(), atomic.sync_folder

    def sync_folder(folder):
        if (folder / "extra_00000001.json").exists():
            hangs.set()
            assert answers.wait(60)
        real(folder)

    monkeypatch.setattr(atomic, "sync_folder", sync_folder)
    with make() as model:
        writer = CheckpointWriter(tmp_path, model)
        writer.save(1, LoaderState(0, 0))
        assert hangs.wait(60)
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "checkpoint")
        writer.close(KeyboardInterrupt)
        assert contents(tmp_path, 1) == {}
        answers.set()
        thread.join(60)
        assert contents(tmp_path, 1) == {} and writer.complete() == writer.notes() == []
        writer.save(2, LoaderState(0, 0))  # the snapshot was released all the same
        writer.close()
        assert [saved.step for saved in writer.complete()] == [2] and writer.notes() == []


def test_a_second_interrupt_ends_the_wait(tmp_path, monkeypatch):
    """CLI-10: whoever presses Ctrl-C again doesn't wait for the save to be completed."""
    monkeypatch.setattr(checkpoint_writer, "GRACE_S", 60)
    gate = Gate(monkeypatch)
    with make() as model:
        writer = CheckpointWriter(tmp_path, model)
        writer.save(1, LoaderState(0, 0))
        assert gate.begun.wait(60)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            writer.close(KeyboardInterrupt)
        assert not gate.open.is_set()
        gate.open.set()
        while any(thread.name == "checkpoint" for thread in threading.enumerate()):
            time.sleep(0.01)
    assert find_latest_complete(tmp_path).step is None and not list(tmp_path.glob("*_0000*"))


def test_an_interrupt_is_answered_while_a_second_save_waits(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    with make() as model:
        writer = CheckpointWriter(tmp_path, model)
        writer.save(1, LoaderState(0, 0))
        assert gate.begun.wait(60)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            writer.save(2, LoaderState(0, 0))
        writer.close(KeyboardInterrupt)
        gate.open.set()
        while any(thread.name == "checkpoint" for thread in threading.enumerate()):
            time.sleep(0.01)
    assert find_latest_complete(tmp_path).step is None and not list(tmp_path.glob("*_0000*"))


def test_another_snapshot_in_use_is_no_failure(shards, tmp_path):  # noqa: F811
    with make() as model, model.snapshot() as held:
        with pytest.raises(StateError, match="released"):
            model.snapshot()
        with train_data(shards) as loader:
            recorder = Recorder()
            Trainer(model, loader, callbacks=[recorder], run_dir=tmp_path, checkpoint_every=2, **PLAIN).run()
        assert [step for kind, step in recorder.events if kind == "saved"] == [2, 4, 6, 8, 10]
        assert isinstance(held, Snapshot) and held.updates == 0


def test_what_a_kill_left_is_swept_when_the_run_goes_on(shards, tmp_path):  # noqa: F811
    run(shards, run_dir=tmp_path, steps=2)
    (tmp_path / ".model_00000003.bin.abc.tmp").write_bytes(b"half")
    (tmp_path / ".mine.tmp").write_bytes(b"not ours")
    run(shards, make("zeros"), run_dir=tmp_path, resume=True, steps=4)
    assert [path.name for path in tmp_path.glob(".*")] == [".mine.tmp"]


# -- processes that end in the midst of it

TRAINS = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from pyllmc import GPT2, GPT2Config, TokenLoader
from pyllmc.checkpoint import iter_checkpoint
from pyllmc.optimizer_state import read_state
from pyllmc.rundir import find_latest_complete, state_name
from pyllmc.shards import write_shard
from pyllmc.callbacks import Callbacks
from pyllmc.trainer import Trainer
folder, config = Path(sys.argv[1]), GPT2Config(layers=1, heads=2, channels=32, vocab=9000, context=8)
write_shard(folder / "data", np.arange(8001))
def train(callbacks, steps=100000):
    model = GPT2.from_config(config, batch=1, seq_len=8, device="cpu")
    with TokenLoader(folder / "data", 1, 8, shuffle=True) as loader:
        trainer = Trainer(model, loader, run_dir=folder / "run", resume=True, steps=steps, checkpoint_every=1, val_every=0,
                          sample_every=0, lr=1e-3, schedule="constant", callbacks=[callbacks])
        return trainer, trainer.run()
"""

KILLED = (
    TRAINS
    + """
import random
class Tells(Callbacks):
    def __init__(self, pipe): self.pipe = pipe
    def on_checkpoint(self, step, path): os.write(self.pipe, b"x")
random.seed(1)
reached = 0
for _ in range(25):
    out, pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        train(Tells(pipe))
    os.close(pipe)
    os.read(out, 1)  # one is complete
    time.sleep(random.random() * 0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(out)
    latest = find_latest_complete(folder / "run")
    assert latest.step > reached and not latest.skipped, (latest, reached)
    reached = latest.step
    state = read_state(folder / "run" / state_name(reached), config)
    assert state.step == state.loader.sample == reached
    for path in (folder / "run").glob("*_0*"):
        if f"{reached:08d}" not in path.name:
            path.unlink()
pid = os.fork()
if pid == 0:
    trainer, result = train(Callbacks(), reached + 1)
    os._exit(0 if (trainer.first_step, result.step) == (reached, reached + 1) else 1)
assert os.waitpid(pid, 0)[1] == 0
assert not list((folder / "run").glob(".*"))
"""
)


def test_kill_while_a_thread_saves(tmp_path):
    """CKP-02: kills at random moments of a run that saves after each update; the latest checkpoint is whole each
    time, the run goes on from it, and what the kills left half-written goes."""
    done = run_python(KILLED, tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr


HUNG = (
    TRAINS
    + """
real = os.fsync
def hangs(descriptor):
    if "model_00000003" in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()
    real(descriptor)
os.fsync = hangs
try:
    train(Callbacks())
except KeyboardInterrupt:
    sys.exit(5)
"""
)


def test_a_disk_that_hangs_does_not_keep_the_process(tmp_path):
    """It ends after Ctrl-C with its own status, quietly, and the checkpoint before is the latest."""
    done = run_python(HUNG, tmp_path)
    assert (done.returncode, done.stderr) == (5, "")
    assert find_latest_complete(tmp_path / "run").step == 2
    assert contents(tmp_path / "run", 3) == {} and not list((tmp_path / "run").glob(".*"))

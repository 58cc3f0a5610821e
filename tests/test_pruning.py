"""-nk and -nm: which checkpoints go, which stay, and what a kill in between leaves."""

import os
import signal
import subprocess
import sys

import pytest
from test_rundir import save
from test_trainer import run, shards  # noqa: F401 (fixture)

from pyllmc import _find
from pyllmc.pruning import prune
from pyllmc.rundir import complete_steps, find_latest_complete, model_name, state_name


@pytest.mark.parametrize(
    "keep, major_every, left",
    [(0, 0, [1, 2, 3, 4, 5, 6]), (1, 0, [6]), (2, 0, [5, 6]), (1, 2, [2, 4, 6]), (2, 3, [3, 5, 6]), (3, 2, [2, 4, 5, 6]),
     (9, 0, [1, 2, 3, 4, 5, 6]), (1, 1, [1, 2, 3, 4, 5, 6]), (0, 2, [1, 2, 3, 4, 5, 6])],
)  # fmt: skip
def test_what_stays(tmp_path, keep, major_every, left):
    for step in range(1, 7):
        save(tmp_path, step)
        prune(tmp_path, step, keep, major_every)
    assert complete_steps(tmp_path) == left[::-1]
    digits = {name.split("_")[1][:8] for name in os.listdir(tmp_path)}
    assert digits == {f"{step:08d}" for step in left}


def test_only_complete_ones_count_and_go(tmp_path):
    """A damaged set is neither one of the newest nor removed; the one just written stays, whatever is newer."""
    for step in (1, 2, 3, 4, 9):
        save(tmp_path, step)
    (tmp_path / model_name(3)).unlink()
    (tmp_path / "DONE_abc").touch()
    (tmp_path / model_name(7)).touch()
    assert prune(tmp_path, 4, keep=2) == [1]
    assert complete_steps(tmp_path) == [9, 4, 2]
    assert {"DONE_00000003", state_name(3), "DONE_abc", model_name(7)} <= set(os.listdir(tmp_path))
    assert prune(tmp_path, 4, keep=1) == [2] and complete_steps(tmp_path) == [9, 4]


KILLED = """
import os, signal, sys
from pathlib import Path
from pyllmc.pruning import prune
folder, doomed = sys.argv[1:]
real = Path.unlink
def unlink(path, *args, **kwargs):
    if path.name.startswith(doomed):
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, *args, **kwargs)
Path.unlink = unlink
prune(folder, 3, 1)
"""


@pytest.mark.parametrize("doomed", ["model_", "extra_", "state_", ".removing_"])
def test_a_kill_in_between(tmp_path, doomed):
    """CKP-02: what is half removed is complete for nobody, and the next pruning takes it away."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, doomed], env={**os.environ, "PYTHONPATH": str(_find.CHECKOUT)}
    )
    assert done.returncode == -signal.SIGKILL
    assert find_latest_complete(tmp_path) == (3, []) and complete_steps(tmp_path) == [3, 1]
    assert ".removing_00000002" in os.listdir(tmp_path)
    save(tmp_path, 4)
    assert prune(tmp_path, 4, 1) == [3, 1]
    assert sorted(os.listdir(tmp_path)) == ["DONE_00000004", model_name(4), state_name(4)]


def test_a_step_that_was_half_removed_and_then_reached_again(tmp_path):
    save(tmp_path, 2)
    (tmp_path / ".removing_00000002").touch()
    (tmp_path / ".removing_x").touch()
    assert prune(tmp_path, 2, 1) == [] and complete_steps(tmp_path) == [2]
    assert len(os.listdir(tmp_path)) == 3


def test_a_run_keeps_so_many_also_after_a_resume(shards, tmp_path):  # noqa: F811
    settings = {"run_dir": tmp_path, "checkpoint_every": 1, "resume": True}
    run(shards, steps=6, **settings)
    assert complete_steps(tmp_path) == [6, 5, 4, 3, 2, 1]
    result, recorder, _ = run(shards, steps=7, **settings, keep=2, major_every=3)
    assert result.first_step == 6 and complete_steps(tmp_path) == [7, 6, 3]
    assert result.checkpoint.exists() and recorder.events[-1] == ("saved", 7)
    run(shards, steps=9, **settings, keep=1)
    assert complete_steps(tmp_path) == [9] and len(list(tmp_path.glob("*_0000*"))) == 4


def test_what_can_not_be_removed_is_a_remark(shards, tmp_path, monkeypatch):  # noqa: F811
    def refuses(*_):
        raise PermissionError(13, "Permission denied", "model_00000001.bin")

    monkeypatch.setattr("pyllmc.trainer.prune", refuses)
    result, recorder, _ = run(shards, steps=2, run_dir=tmp_path, checkpoint_every=1, keep=1)
    assert result.step == 2 and complete_steps(tmp_path) == [2, 1]
    assert "old checkpoints could not be removed" in recorder.notes[0] and "model_00000001.bin" in recorder.notes[0]

"""Preparation in several processes, killed, interrupted and starved: what is left is complete, and a rerun goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest
from test_data_prepare import files_of, jsonl

from pyllmc.data import prepare
from pyllmc.errors import StateError
from pyllmc.formats import open_shard

SETTINGS = {"tokenizer": "bytes", "shard_size": 200_000, "val": 0.1}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """JSONL of some 12 MB: a dozen ranges, 60 shards."""
    folder = tmp_path_factory.mktemp("source")
    return jsonl(folder / "a.jsonl", [{"text": f"{number} words and words, " * 25} for number in range(20000)])


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The shards of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("whole")
    prepare(source, folder, **SETTINGS)
    return files_of(folder)


def start(source, folder, processes):
    words = ["prepare", source, "-o", folder, "--tokenizer", "bytes", "--shard-size", "200k", "--processes", processes]
    return subprocess.Popen(
        [sys.executable, "-m", "pyllmc.data", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}, start_new_session=True,
    )  # fmt: skip


def wait_for_shards(running, folder, count):
    until = time.monotonic() + 60
    while len(list(folder.glob("*.bin"))) < count:
        assert running.poll() is None and time.monotonic() < until, running.communicate()
        time.sleep(0.002)


def alive(session):
    """Processes of that session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def wait_for_end(session):
    until = time.monotonic() + 20
    while left := alive(session):
        if time.monotonic() > until:
            os.killpg(session, signal.SIGKILL)
            pytest.fail(f"left over: {left}")
        time.sleep(0.05)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_kill_leaves_complete_shards_and_a_rerun_goes_on(source, whole, tmp_path, processes):
    """Like CKP-02: again and again killed while it writes."""
    for count in (1, 9, 30):
        running = start(source, tmp_path, processes)
        wait_for_shards(running, tmp_path, count)
        running.kill()
        running.wait()
        wait_for_end(running.pid)  # a worker without its parent ends, too
        running.communicate()
        for path in tmp_path.glob("*.bin"):
            with open_shard(path):
                assert path.read_bytes() == whole[path.name]
    running = start(source, tmp_path, processes)
    out, err = running.communicate()
    assert running.returncode == 0 and err == "", err
    assert files_of(tmp_path) == whole


def test_control_c_is_one_sentence_and_goes_on(source, whole, tmp_path):
    running = start(source, tmp_path, 2)
    wait_for_shards(running, tmp_path, 5)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    out, err = running.communicate()
    assert running.returncode == 130 and re.fullmatch(r"\npyllmc\.data: interrupted; .*\n", err), err
    wait_for_end(running.pid)
    assert 5 <= len(list(tmp_path.glob("*.bin"))) < len(whole)
    prepare(source, tmp_path, **SETTINGS)
    assert files_of(tmp_path) == whole


def test_workers_that_die_are_one_sentence(source, whole, tmp_path):
    """All of them, at the first sign of progress: what hasn't been encoded by then never comes."""
    ended = []

    def end_all(done, total):
        for worker in active_children() if done else ():
            ended.append(done < total / 2)
            worker.kill()
            worker.join()

    with pytest.raises(StateError, match="try fewer --processes"):
        prepare(source, tmp_path, processes=2, progress=end_all, **SETTINGS)
    assert ended and all(ended)  # fewer than half of the ranges can have been handed out
    prepare(source, tmp_path, **SETTINGS)
    assert files_of(tmp_path) == whole


def test_a_full_disk_leaves_complete_shards(source, whole, tmp_path, monkeypatch):
    real, left = os.fsync, [25]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        prepare(source, tmp_path, **SETTINGS)
    found = list(tmp_path.glob("*.bin"))
    assert found and all(path.read_bytes() == whole[path.name] for path in found)
    prepare(source, tmp_path, **SETTINGS)
    assert files_of(tmp_path) == whole


def test_a_bar_on_a_terminal_only(source, tmp_path, monkeypatch):
    from pyllmc.data import __main__ as command

    shown = []
    monkeypatch.setattr(command, "has_size", lambda stream: True)
    monkeypatch.setattr(command.tqdm, "update", lambda bar, n: shown.append((bar.total, n)))
    with command.bar() as show:
        show(30, 100)  # an interrupted one starts at 30
        show(70, 100)
    assert [total for total, _ in shown] == [100, 100]
    monkeypatch.setattr(command, "has_size", lambda stream: False)
    monkeypatch.setattr(command, "tqdm", None)
    with command.bar() as show:
        show(1, 2)


def test_ctrl_c_meets_no_worker_that_just_starts():
    """Not the first of them either, before which multiprocessing starts a process of its own."""
    code = """
import signal
from pyllmc.data.workers import Worker
if __name__ == "__main__":
    for _ in range(2):
        worker = Worker(None)
        status = dict(line.split(":", 1) for line in open(f"/proc/{worker._process.pid}/status"))
        print(int(status["SigBlk"], 16) >> signal.SIGINT - 1 & 1)
        worker.end()
    print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n1\n0\n", "")

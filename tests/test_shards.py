"""Writing shards, and files that are complete or absent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllmc.atomic import atomic_write
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.formats import find_shards, open_shard, write_shard
from pyllmc.shards import ShardWriter

MICRO = Path(__file__).parent / "golden" / "micro"


def read_all(path):
    with open_shard(path) as shard:
        return shard.read(0, shard.tokens)


@pytest.mark.parametrize("name", ["train_000001.bin", "val_000000.bin"])
def test_reference_file_round_trip(name, tmp_path):
    write_shard(tmp_path / "copy.bin", read_all(MICRO / name))
    assert (tmp_path / "copy.bin").read_bytes() == (MICRO / name).read_bytes()


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([1, 70000, 2], "id 70000 at position 1"),
        ([5, 5, -1], "id -1 at position 2"),
        (np.array([2**40]), "id 1099511627776 at position 0"),
        ([1.5], "integers, got float64"),
        ([[1], [2]], r"shape \(2, 1\)"),
    ],
)
def test_ids_that_do_not_fit_write_nothing(tokens, text, tmp_path):
    """DAT-14"""
    with pytest.raises(InvalidArgument, match=text):
        write_shard(tmp_path / "a.bin", tokens)
    assert not list(tmp_path.iterdir())


def test_largest_id_and_empty_shard(tmp_path):
    write_shard(tmp_path / "a.bin", [0, 65535])
    assert read_all(tmp_path / "a.bin").tolist() == [0, 65535]
    write_shard(tmp_path / "b.bin", [])
    assert read_all(tmp_path / "b.bin").size == 0


def test_size_and_count_must_agree(tmp_path):
    raw = (MICRO / "val_000000.bin").read_bytes()
    for change, text in (
        (raw[:-2], "truncated.*801 tokens.*room for 800"),
        (raw + b"xy", "do not belong.*802"),
    ):
        (tmp_path / "a.bin").write_bytes(change)
        with pytest.raises(FormatError, match=text):
            open_shard(tmp_path / "a.bin")


def test_shrinking_while_open_is_noticed(tmp_path):
    write_shard(tmp_path / "a.bin", range(100))
    with open_shard(tmp_path / "a.bin") as shard:
        os.truncate(tmp_path / "a.bin", 1024 + 2 * 50)
        with pytest.raises(FormatError, match="became shorter.*byte 1124"):
            shard.read(40, 20)


def test_find_shards_sorts_and_takes_names_literally(tmp_path):
    for name in ("b.bin", "a.bin", "[c].bin"):
        write_shard(tmp_path / name, [1])
    assert [path.name for path in find_shards(tmp_path / "?.bin")] == ["a.bin", "b.bin"]
    assert [path.name for path in find_shards(str(tmp_path / "[c].bin"))] == ["[c].bin"]
    assert [path.name for path in find_shards([tmp_path / "b.bin", tmp_path / "a.bin"])] == ["b.bin", "a.bin"]


# few examples of few shards: each shard waits for the disk
@settings(deadline=None, max_examples=30)
@given(parts=st.lists(st.integers(0, 20), min_size=1, max_size=5), size=st.integers(2, 12))
def test_shards_join_to_the_stream(tmp_path_factory, parts, size):
    folder = tmp_path_factory.mktemp("writer")
    stream = np.arange(sum(parts), dtype=np.uint16)
    writer = ShardWriter(folder, "x", size)
    for part in np.split(stream, np.cumsum(parts)[:-1]):
        writer.append(part)
    counts = writer.finish()
    read = [read_all(folder / name) for name in counts]
    assert sorted(counts) == list(counts) == sorted(path.name for path in folder.iterdir())
    assert [tokens.size for tokens in read] == list(counts.values())
    np.testing.assert_array_equal(np.concatenate([stream[:0], *read]), stream)
    assert all(count <= size for count in counts.values())
    if len(counts) > 1:
        assert min(counts.values()) >= size // 2


def test_an_exception_leaves_nothing_behind(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "a") as file:
        file.write(b"new")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_unfinished_file_is_hidden_and_in_the_same_folder(tmp_path):
    with atomic_write(tmp_path / "a.bin"):
        (unfinished,) = tmp_path.iterdir()
        assert unfinished.name.startswith(".") and not list(tmp_path.glob("*.bin"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_finished_file_has_ordinary_permissions(tmp_path):
    with atomic_write(tmp_path / "a"):
        pass
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


KILLED_WRITER = """
import sys
from pyllmc.atomic import atomic_write
for number in range(10**9):
    with atomic_write(sys.argv[1]) as file:
        for _ in range(64):
            file.write(b"%08d" % number * 128)
            file.flush()
    if number == 0:
        print("ready", flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_complete_file(tmp_path):
    path = tmp_path / "a"
    for delay in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED_WRITER, str(path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert writer.stdout.readline() == b"ready\n"
        for _ in range(delay * 7):
            path.read_bytes()  # readers meanwhile see whole files, too
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        raw = path.read_bytes()
        assert len(raw) == 64 * 128 * 8 and raw == raw[:8] * (64 * 128)

"""Batches in the reference's order, resumable after any of them, from files of any size."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllmc.errors import FormatError, InvalidArgument, StateError
from pyllmc.formats import open_shard, write_shard
from pyllmc.headers import HEADER_BYTES, SHARD, pack_header
from pyllmc.loader import TokenLoader

MICRO = Path(__file__).parent / "golden" / "micro"


def fingerprint(inputs, targets):
    """FNV-1a over the interleaved values, with the starting value of the reference files."""
    value = 1469598103934665603
    for token in np.stack([inputs.reshape(-1), targets.reshape(-1)], 1).reshape(-1).tolist():
        value = (value ^ token) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def shards(folder, *counts):
    """Shards with ids that no other place has: shard 0 counts from 0, shard 1 from 10000, …"""
    for number, count in enumerate(counts):
        write_shard(folder / f"data_{number}.bin", np.arange(count) + 10000 * number)
    return str(folder / "data_*.bin")


def batches(loader, n):
    return [loader.next_batch()[0].tolist() for _ in range(n)]


def served_as_recorded(folder):
    recorded = json.loads((folder / "loader_order.json").read_text())
    for run in recorded["runs"]:
        with TokenLoader(
            folder / recorded["pattern"], recorded["B"], recorded["T"], rank=run["rank"],
            world=run["world_size"], shuffle=run["shuffle"], vocab=257,
        ) as loader:  # fmt: skip
            assert len(run["fnv1a64"]) > loader.num_batches  # the record passes an epoch's end
            assert [fingerprint(*loader.next_batch()) for _ in run["fnv1a64"]] == run["fnv1a64"]


def test_order_of_the_reference():
    served_as_recorded(MICRO)


def test_order_of_the_reference_on_larger_files(golden):
    served_as_recorded(golden)


def test_targets_are_inputs_shifted_by_one(tmp_path):
    loader = TokenLoader(shards(tmp_path, 50), 2, 5, shuffle=True)
    for _ in range(7):
        inputs, targets = loader.next_batch()
        np.testing.assert_array_equal(targets, inputs + 1)


def test_ranks_share_a_sample_without_overlap(tmp_path):
    pattern = shards(tmp_path, 61)
    parts = [batches(TokenLoader(pattern, 1, 5, rank=rank, world=3), 4) for rank in range(3)]
    assert [number for step in zip(*parts, strict=True) for row in step for number in row[0]] == list(
        range(60)
    )


@pytest.mark.parametrize(("tokens", "samples"), [(192, 2), (193, 3), (65, 1)])
def test_samples_leave_the_header_out_and_the_last_target_in(tokens, samples, tmp_path):
    """DAT-06"""
    assert TokenLoader(shards(tmp_path, tokens), 1, 64).num_batches == samples


def test_one_token_short_is_explained(tmp_path):
    """DAT-04"""
    pattern = shards(tmp_path, 128)
    with pytest.raises(
        InvalidArgument, match=r"data_0.bin: too small .* have 128 tokens, need 129 .*smaller B"
    ):
        TokenLoader(pattern, 16, 8)
    TokenLoader(pattern, 15, 8)
    with pytest.raises(InvalidArgument, match="need 241 .* x 2 ranks"):
        TokenLoader(pattern, 15, 8, rank=1, world=2)
    write_shard(tmp_path / "data_1.bin", range(120))
    with pytest.raises(InvalidArgument, match=r"data_1.bin: too small"):
        TokenLoader(pattern, 15, 8)
    write_shard(tmp_path / "val.bin", np.zeros(8 * 4 * 1024, np.uint16))
    with pytest.raises(InvalidArgument, match=r"val.bin: .* have 32768 tokens, need 32769 \(B 4 x T 1024 x 8 ranks"):
        TokenLoader(tmp_path / "val.bin", 4, 1024, rank=7, world=8)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("counts", [(51, 51), (31, 81, 11)])
def test_resume_after_every_batch(shuffle, counts, tmp_path):
    """Saved after k batches and restored in a new loader, the next twelve are those of an unbroken run."""
    pattern = shards(tmp_path, *counts)
    whole = batches(TokenLoader(pattern, 2, 5, shuffle=shuffle), 40)
    for k in range(28):
        first = TokenLoader(pattern, 2, 5, shuffle=shuffle)
        batches(first, k)
        second = TokenLoader(pattern, 2, 5, shuffle=shuffle, seed=999)
        batches(second, 3)  # whatever it did before is forgotten
        second.restore(first.state())
        assert batches(second, 12) == whole[k : k + 12], k


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(9, 60), min_size=1, max_size=4),
    world=st.integers(1, 2),
    stops=st.lists(st.integers(0, 9), min_size=1, max_size=5),
)
def test_resume_many_times(tmp_path_factory, counts, world, stops):
    pattern = shards(tmp_path_factory.mktemp("resume"), *counts)
    options = {"rank": world - 1, "world": world, "shuffle": True}
    whole = batches(TokenLoader(pattern, 2, 2, **options), sum(stops) + 5)
    got, state = [], TokenLoader(pattern, 2, 2, **options).state()
    for count in [*stops, 5]:
        loader = TokenLoader(pattern, 2, 2, **options)
        loader.restore(state)
        got += batches(loader, count)
        state = loader.state()
    assert got == whole


def test_a_state_is_not_changed_by_what_follows(tmp_path):
    loader = TokenLoader(shards(tmp_path, 31, 31), 1, 10, shuffle=True)
    states, served = [], []
    for _ in range(15):
        states.append(loader.state())
        served += batches(loader, 1)
    for k, state in enumerate(states):
        loader.restore(state)
        assert batches(loader, 1) == served[k : k + 1]


def test_state_at_a_shard_end_names_the_shard_used_up(tmp_path):
    loader = TokenLoader(shards(tmp_path, 31, 31), 1, 10)
    batches(loader, 3)
    assert (loader.state().shard, loader.state().sample) == (0, 3)
    batches(loader, 1)
    assert (loader.state().shard, loader.state().sample) == (1, 1)


def test_state_of_other_data_is_refused_and_changes_nothing(tmp_path):
    loader = TokenLoader(shards(tmp_path, 31, 31), 1, 10, shuffle=True)
    expected = batches(TokenLoader(loader.paths, 1, 10, shuffle=True), 3)
    for B, T, paths, shuffle, text in (
        (1, 5, loader.paths, True, "sample 0 of 6 .* which now has 3: resume with the same"),
        (1, 10, loader.paths[:1], True, "had 1 shards, now 2"),
        (1, 10, loader.paths, False, "read its data in order, this one reads it shuffled"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            loader.restore(TokenLoader(paths, B, T, shuffle=shuffle).state())
    assert batches(loader, 3) == expected


def test_reset_repeats_validation(tmp_path):
    loader = TokenLoader(shards(tmp_path, 31, 21), 1, 10)
    first = batches(loader, 4)
    loader.reset()
    assert batches(loader, 4) == first


def test_token_outside_the_vocabulary(tmp_path):
    write_shard(tmp_path / "a.bin", [1] * 25 + [257] + [1] * 15)
    loader = TokenLoader(tmp_path / "a.bin", 1, 10, vocab=257)
    batches(loader, 2)
    before = loader.state()
    for _ in range(2):  # nothing was consumed: the same sentence again
        with pytest.raises(FormatError, match=r"a.bin: token 25 \(byte 1074\) is 257, .* vocabulary is 257"):
            loader.next_batch()
    assert loader.state() == before


def test_failing_to_open_the_next_shard_can_be_repaired(tmp_path):
    (tmp_path / "data").mkdir()
    pattern = shards(tmp_path / "data", 11, 11, 11)
    expected = batches(TokenLoader(pattern, 1, 10, shuffle=True), 8)
    loader = TokenLoader(pattern, 1, 10, shuffle=True)
    got = batches(loader, 3)  # the next batch begins an epoch: orders are drawn, a file is opened
    (tmp_path / "data").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            loader.next_batch()
    (tmp_path / "away").rename(tmp_path / "data")
    assert got + batches(loader, 5) == expected


def test_destinations_are_checked(tmp_path):
    loader = TokenLoader(shards(tmp_path, 31), 1, 10)
    good = np.empty((1, 10), np.int32)
    for bad in (np.empty((1, 9), np.int32), np.empty((1, 10), np.int64)):
        with pytest.raises(InvalidArgument, match="targets must be int32"):
            loader.next_into(good, bad)
    strided = np.zeros((1, 20), np.int32)[:, ::2]
    loader.next_into(strided, good)
    assert strided.tolist() == [list(range(10))]
    loader.close()
    loader.close()
    with pytest.raises(StateError, match="closed"):
        loader.next_batch()


def test_patterns(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no token shard matches 'nothing_\*.bin'"):
        TokenLoader("nothing_*.bin", 1, 10)
    with pytest.raises(InvalidArgument, match="rank must be"):
        TokenLoader(shards(tmp_path, 31), 1, 10, rank=1)
    with pytest.raises(InvalidArgument, match="T must be"):
        TokenLoader(shards(tmp_path, 31), 1, 0)


TOKENS = 1_140_850_688  # 2.1 GiB of them


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    """A sparse shard past 2 GiB: it takes no disk space but for the tokens written at places of interest."""
    path = tmp_path_factory.mktemp("huge") / "huge.bin"
    with open(path, "wb") as file:
        file.write(pack_header(SHARD, 1, {2: TOKENS}))
        file.truncate(HEADER_BYTES + 2 * TOKENS)
        for byte in (2**31 - 64, 2**31, 2**31 + 2**26):
            file.seek(byte)
            file.write((np.arange(32) + byte // 64 % 50000 + 1).astype("<u2").tobytes())
    yield path
    path.unlink()


@pytest.mark.parametrize("byte", [2**31 - 64, 2**31, 2**31 + 2**26])
def test_offsets_past_2_gib(huge, byte):
    """DAT-01"""
    first = (byte - HEADER_BYTES) // 2
    stored = np.memmap(huge, "<u2", "r", offset=HEADER_BYTES)
    with open_shard(huge) as shard:
        tokens = shard.read(first - 8, 48)
    np.testing.assert_array_equal(tokens, stored[first - 8 : first + 40])
    assert tokens[8:40].all()
    loader = TokenLoader(huge, 1, 16)
    state = loader.state()
    loader.restore(type(state)(0, first // 16))
    inputs, _ = loader.next_batch()
    start = first // 16 * 16
    np.testing.assert_array_equal(inputs[0], stored[start : start + 16])
    assert inputs.any()


def test_offsets_around_4_gib(tmp_path):
    """The largest count a header can hold ends just below 2^32 bytes of tokens; the header pushes it past."""
    path, count = tmp_path / "largest.bin", 2**31 - 1
    with open(path, "wb") as file:
        file.write(pack_header(SHARD, 1, {2: count}))
        file.truncate(HEADER_BYTES + 2 * count)
        file.seek(2**32 - 32)
        file.write(np.arange(1, 33).astype("<u2").tobytes())
    with open_shard(path) as shard:
        assert shard.read((2**32 - 32 - HEADER_BYTES) // 2, 32).tolist() == list(range(1, 33))
        assert shard.read(count - 4, 4).tolist() == [0] * 4
        with pytest.raises(InvalidArgument, match="asked for"):
            shard.read(count - 3, 4)
    path.unlink()


def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="resident memory is read from /proc")
def test_resident_memory_does_not_grow_with_the_data(huge):
    """Every 16th MiB of the shard is read; a mapping would keep each page."""
    B, T = 64, 8192  # 1 MiB of tokens per batch
    loader = TokenLoader(huge, B, T, shuffle=True)
    inputs, targets = np.zeros((2, B, T), np.int32)
    loader.next_into(inputs, targets)
    before = resident()
    for _ in range(256):
        loader.next_into(inputs, targets)
    assert resident() - before < 32 << 20

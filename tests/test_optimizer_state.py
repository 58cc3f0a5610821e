"""Optimizer states against the reference's file of step 10."""

from dataclasses import replace

import numpy as np
import pytest

from pyllmc.config import GPT2Config
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.formats import (
    LoaderState,
    OptimizerState,
    peek_checkpoint,
    peek_state,
    read_state,
    split_by_tensor,
)
from pyllmc.formats import write_state as write
from pyllmc.loader import TokenLoader
from pyllmc.rng import Mt19937

CONFIG = GPT2Config(1, 1, 2, 5, 4)


def small(count=CONFIG.num_params, **changes):
    m, v, master = np.random.default_rng(0).normal(size=(3, count)).astype(np.float32)
    order = np.array([2, 0, 1], np.int32)
    loader = LoaderState(1, 3, order, np.arange(7, dtype=np.int32), Mt19937(3).to_bytes())
    return replace(OptimizerState(9, m, v, master, loader, 1, 0, 2**63 + 1, 17), **changes)


def same(a, b):
    for name in ("m", "v", "master"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("shard_order", "sample_order"):
        np.testing.assert_array_equal(getattr(a.loader, name), getattr(b.loader, name))
    for name in ("step", "world", "rank", "rounding", "rounding_before"):
        assert getattr(a, name) == getattr(b, name)
    return (a.loader.shard, a.loader.sample, a.loader.generator) == (
        b.loader.shard, b.loader.sample, b.loader.generator,
    )  # fmt: skip


def test_reference_state(golden, tmp_path):
    path = golden / "mid_state_00000010_00000.bin"
    config, _ = peek_checkpoint(golden / "mid_model_00000010.bin")
    state = read_state(path, config)
    assert (state.step, state.world, state.rank, state.master, state.loader.sample) == (10, 1, 0, None, 10)
    tensors = split_by_tensor(state.m, config)
    assert not tensors["wte"][config.vocab :].any() and tensors["lnfb"].all()
    assert (state.v >= 0).all()
    write(tmp_path / "copy.bin", state)
    assert (tmp_path / "copy.bin").read_bytes() == path.read_bytes()


def test_reference_loader_state_is_ours_after_ten_batches(golden):
    config, _ = peek_checkpoint(golden / "mid_model_00000010.bin")
    theirs = read_state((golden / "mid_state_00000010_00000.bin"), config).loader
    with TokenLoader(golden / "bytes_train_*.bin", 4, 64, shuffle=True) as ours:
        for _ in range(10):
            ours.next_batch()
        mine = ours.state()
    np.testing.assert_array_equal(mine.shard_order, theirs.shard_order)
    np.testing.assert_array_equal(mine.sample_order, theirs.sample_order)
    assert (mine.shard, mine.sample, mine.generator) == (theirs.shard, theirs.sample, theirs.generator)


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("world", [1, 2])
def test_round_trip(master, shuffled, world, tmp_path):
    state = small(CONFIG.num_params // world, world=world, rank=world - 1)
    if not master:
        state.master = None
    if not shuffled:
        state.loader = LoaderState(4, 2)
    write(tmp_path / "s.bin", state)
    assert same(state, read_state(tmp_path / "s.bin", CONFIG))
    assert peek_state(tmp_path / "s.bin", CONFIG).rounding == 2**63 + 1


def test_ranks_without_sharding_hold_everything(tmp_path):
    write(tmp_path / "s.bin", small(world=2, rank=1))
    assert read_state(tmp_path / "s.bin", CONFIG).m.size == CONFIG.num_params


def test_vectors_can_come_tensor_by_tensor(tmp_path):
    state = small()
    write(tmp_path / "a.bin", state)
    write(tmp_path / "b.bin", replace(state, m=list(split_by_tensor(state.m, CONFIG).values())))
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


def test_every_truncation_is_noticed(tmp_path):
    write(tmp_path / "s.bin", small())
    raw = (tmp_path / "s.bin").read_bytes()
    for size in [*range(0, len(raw), 97), len(raw) - 1, len(raw) - 2520, len(raw) + 4]:
        (tmp_path / "s.bin").write_bytes((raw + bytes(4))[:size])
        with pytest.raises(FormatError, match="short|truncated|belong"):
            read_state(tmp_path / "s.bin", CONFIG)


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (1, 2, "version 2"),
        (2, 0, "world size"),
        (3, 1, "rank"),
        (4, 2, "master"),
        (5, -1, "shuffling"),
        (10, -1, "step"),
        (30, 3, "sample 3 of shard 3"),
        (32, 8, "sample 8 of shard 1"),
    ],
)
def test_fields_are_checked(position, value, text, tmp_path):
    write(tmp_path / "s.bin", small())
    raw = bytearray((tmp_path / "s.bin").read_bytes())
    raw[4 * position : 4 * position + 4] = value.to_bytes(4, "little", signed=True)
    (tmp_path / "s.bin").write_bytes(raw)
    with pytest.raises(FormatError, match=text):
        read_state(tmp_path / "s.bin", CONFIG)


def test_an_order_that_is_no_permutation(tmp_path):
    state = small()
    write(tmp_path / "s.bin", replace(state, loader=replace(state.loader, shard_order=np.array([0, 0, 1]))))
    with pytest.raises(FormatError, match="shard order of 3 entries is not a permutation"):
        read_state(tmp_path / "s.bin", CONFIG)


def test_another_model_and_uneven_vectors(tmp_path):
    write(tmp_path / "s.bin", small())
    with pytest.raises(FormatError, match="truncated"):
        read_state(tmp_path / "s.bin", GPT2Config(2, 1, 2, 5, 4))
    with pytest.raises(InvalidArgument, match="different lengths"):
        write(tmp_path / "t.bin", replace(small(), v=np.zeros(3, np.float32)))
    assert not (tmp_path / "t.bin").exists()

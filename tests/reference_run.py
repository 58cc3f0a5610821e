"""llm.c's run folders, spelled out from the description of its files: data order, optimizer state, byte by byte.

Written apart from pyllmc's own reader and writer, on NumPy's Mersenne Twister and struct, so that the two can disagree.
"""

import struct
from pathlib import Path

import numpy as np


class ReferenceLoader:
    """Serves (shard, sample) pairs in llm.c's order; counts: samples of each shard, in the order of their names."""

    def __init__(self, counts, shuffle=True, rank=0):
        self.counts, self.shuffle = counts, shuffle
        self.twister = np.random.MT19937()
        self.twister._legacy_seeding(42 + rank)
        self.drawn = False
        self.shards = list(range(len(counts)))
        self._begin_epoch()

    def next(self):
        if self.sample == self.counts[self.shards[self.shard]]:
            if self.shard + 1 == len(self.counts):
                self._begin_epoch()
            else:
                self._open(self.shard + 1)
        self.sample += 1
        return self.shards[self.shard], self.order[self.sample - 1]

    def tail(self):
        """What follows the vectors in a state file; nothing without shuffling. (llm.c never fills in the seed.)"""
        if not self.shuffle:
            return b""
        parts = [struct.pack(f"<Q{len(order)}i", len(order), *order) for order in (self.shards, self.order)]
        inner = self.twister.state["state"]
        position = int(inner["pos"])
        left, following = (625 - position, position) if self.drawn else (1, 0)
        words = struct.pack("<QiI624I2I", 0, left, following, *map(int, inner["key"]), 0, 0x9908B0DF)
        assert len(words) == 2520
        return b"".join(parts) + words

    def _begin_epoch(self):
        if self.shuffle:
            self._permute(self.shards)
        self._open(0)

    def _open(self, shard):
        self.shard, self.sample = shard, 0
        self.order = list(range(self.counts[self.shards[shard]]))
        if self.shuffle:
            self._permute(self.order)

    def _permute(self, values):
        for i in range(len(values) - 1, 0, -1):
            j = int(self.twister.random_raw()) % (i + 1)
            self.drawn = True
            values[i], values[j] = values[j], values[i]


def state_bytes(step, loader, m, v, master=None, world=1, rank=0, rounding=(0, 0)):
    """A state file; m, v, master: float32 vectors."""
    header = bytearray(1024)
    struct.pack_into("<6i", header, 0, 20240527, 1, world, rank, master is not None, loader.shuffle)
    struct.pack_into("<i", header, 40, step)
    struct.pack_into("<2Q", header, 80, *rounding)
    struct.pack_into("<2Q", header, 120, loader.shard, loader.sample)
    vectors = [np.asarray(vector, "<f4").tobytes() for vector in (m, v, master) if vector is not None]
    return bytes(header) + b"".join(vectors) + loader.tail()


def model_bytes(config, params, dtype):
    """A checkpoint; params: {name: float32 array}, whose low halves are cut off for "bf16"."""
    header = bytearray(1024)
    version = {"fp32": 3, "bf16": 5}[dtype]
    struct.pack_into("<8i", header, 0, 20240326, version, config.context, config.vocab, config.layers, config.heads,
                     config.channels, -(-config.vocab // 128) * 128)  # fmt: skip
    body = b"".join(np.ascontiguousarray(value, "<f4").tobytes() for value in params.values())
    if dtype == "bf16":
        body = np.frombuffer(body, "<u2")[1::2].tobytes()
    return bytes(header) + body


def write_folder(folder, step, model, states):
    """model_*.bin, a state of each rank, DONE_*: as llm.c leaves a checkpoint."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    (folder / f"model_{step:08d}.bin").write_bytes(model)
    for rank, state in enumerate(states):
        (folder / f"state_{step:08d}_{rank:05d}.bin").write_bytes(state)
    (folder / f"DONE_{step:08d}").touch()

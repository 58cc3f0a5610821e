"""llm.c optimizer states: what one rank needs, besides the weights, to go on training without a seam."""

from dataclasses import dataclass

import numpy as np

from .atomic import atomic_write
from .errors import FormatError, InvalidArgument
from .headers import (
    HEADER_BYTES,
    OPTIMIZER_STATE,
    check_size,
    file_size,
    pack_header,
    read_exactly,
    read_header,
)
from .rng import STATE_BYTES

INT32_MAX = 2**31 - 1
LOADER_FIXED = 8 + 8 + STATE_BYTES  # two counts and the generator; the two orders come on top


@dataclass(frozen=True)
class LoaderState:
    """Where a token loader stands: everything served up to here, nothing after.

    shard: position, in the permuted order, of the shard in use. sample: the next one in it; equal to the
    shard's sample count when it is used up, the next shard being opened by the next batch only.
    shard_order, sample_order: int32 permutations, and generator: 2,520 bytes; None without shuffling.
    """

    shard: int
    sample: int
    shard_order: np.ndarray | None = None
    sample_order: np.ndarray | None = None
    generator: bytes | None = None

    @property
    def shuffled(self):
        return self.generator is not None


@dataclass
class OptimizerState:
    """m, v and master (or None): float32 vectors over this rank's parameters in tensor order.

    A rank of a sharded optimizer (ZeRO-1) holds, of every layer of every tensor, its 1/world part.
    `rounding` and `rounding_before` are the stochastic-rounding generator after and before the last update.
    """

    step: int
    m: np.ndarray
    v: np.ndarray
    master: np.ndarray | None
    loader: LoaderState
    world: int = 1
    rank: int = 0
    rounding: int = 0
    rounding_before: int = 0


@dataclass(frozen=True)
class StateHeader:
    """The checked header fields of an optimizer state."""

    world: int
    rank: int
    has_master: bool
    shuffled: bool
    step: int
    rounding: int
    rounding_before: int
    shard: int
    sample: int


def peek_state(path, config=None):
    """StateHeader of the file at `path`; with `config` its size is checked too. Raises FormatError."""
    with open(path, "rb") as file:
        head = _read_fields(file, path)
        if config is not None:
            _count_of_parameters(file, path, head, config)
        return head


def read_state(path, config):
    """The OptimizerState at `path` of a model of shape `config`. Raises FormatError.

    The file does not say whether the optimizer was sharded; its size does.
    """
    with open(path, "rb") as file:
        head = _read_fields(file, path)
        count = _count_of_parameters(file, path, head, config)

        def vector():
            return read_exactly(file, path, np.empty(count, "<f4"))

        m, v = vector(), vector()
        master = vector() if head.has_master else None
        orders = {}
        if head.shuffled:
            orders["shard_order"] = _read_order(file, path, "shard order")
            orders["sample_order"] = _read_order(file, path, "sample order")
            orders["generator"] = file.read(STATE_BYTES)
            if head.shard >= len(orders["shard_order"]) or head.sample > len(orders["sample_order"]):
                raise FormatError(
                    f"{path}: stands at sample {head.sample} of shard {head.shard} (header[32], [30]), but "
                    f"has {len(orders['sample_order'])} samples and {len(orders['shard_order'])} shards"
                )
    return OptimizerState(
        head.step, m, v, master, LoaderState(head.shard, head.sample, **orders),
        head.world, head.rank, head.rounding, head.rounding_before,
    )  # fmt: skip


def write_state(path, state):
    """Write `state`; m, v and master may also be iterables of arrays (per tensor), written one after another.

    The file appears complete or not at all. Raises InvalidArgument when m, v and master differ in length.
    """
    loader = state.loader
    for name in ("step", "world", "rank"):
        if not 0 <= getattr(state, name) <= INT32_MAX:
            raise InvalidArgument(f"{path}: {name} is {getattr(state, name)}, expected 0 to {INT32_MAX}")
    fields = {2: state.world, 3: state.rank, 4: state.master is not None, 5: loader.shuffled, 10: state.step}
    header = np.frombuffer(bytearray(pack_header(OPTIMIZER_STATE, 1, fields)), "<i4")
    wide = {20: state.rounding, 22: state.rounding_before, 30: loader.shard, 32: loader.sample}
    for position, value in wide.items():
        header[position : position + 2].view("<u8")[0] = value
    with atomic_write(path) as file:
        file.write(header)
        counts = [
            _write_floats(file, vector) for vector in (state.m, state.v, state.master) if vector is not None
        ]
        if len(set(counts)) > 1:
            raise InvalidArgument(f"{path}: m, v and master weights have different lengths: {counts}")
        if loader.shuffled:
            for order in (loader.shard_order, loader.sample_order):
                file.write(np.uint64(len(order)).astype("<u8").tobytes())
                file.write(np.ascontiguousarray(order, "<i4"))
            file.write(loader.generator)


def split_by_tensor(vector, config):
    """{name: view of the right shape} of an unsharded m, v or master vector."""
    if vector.size != config.num_params:
        raise InvalidArgument(f"{vector.size} values do not cover the model's {config.num_params} parameters")
    parts, start = {}, 0
    for name, shape in config.shapes().items():
        size = int(np.prod(shape))
        parts[name] = vector[start : start + size].reshape(shape)
        start += size
    return parts


def _read_fields(file, path):
    header = read_header(file, path, OPTIMIZER_STATE)
    world, rank, has_master, shuffled, step = (int(header[i]) for i in (2, 3, 4, 5, 10))
    for position, name, value, limit in (
        (2, "world size", world - 1, INT32_MAX), (3, "rank", rank, world),
        (4, "master weights", has_master, 2), (5, "shuffling", shuffled, 2), (10, "step", step, INT32_MAX),
    ):  # fmt: skip
        if not 0 <= value < limit:
            raise FormatError(f"{path}: {name} (header[{position}]) is {header[position]}, out of range")
    wide = (int(header[i : i + 2].view("<u8")[0]) for i in (20, 22, 30, 32))
    return StateHeader(world, rank, bool(has_master), bool(shuffled), step, *wide)


def _count_of_parameters(file, path, head, config):
    """Parameters of this rank: all, or its 1/world part, whichever fits the file's size."""
    size, vectors = file_size(file), 2 + head.has_master
    candidates = [config.num_params]
    if head.world > 1 and config.num_params % head.world == 0:
        candidates.append(config.num_params // head.world)
    wanted = []
    for count in candidates:
        expected = HEADER_BYTES + 4 * vectors * count
        if head.shuffled:
            expected += LOADER_FIXED + _orders_bytes(file, expected, size)
        wanted.append(expected)
        if expected == size:
            file.seek(HEADER_BYTES)
            return count
    check_size(
        path, OPTIMIZER_STATE, size, wanted[0],
        f"{vectors} vectors of the {candidates[0]} parameters of {config}"
        + (" and the loader" if head.shuffled else ""),
    )  # fmt: skip
    raise AssertionError("unreachable: a fitting size has returned above")


def _orders_bytes(file, position, size):
    """Bytes of the two permutations whose counted lists begin at `position`; less if the file ends before."""
    total = 0
    for _ in range(2):
        file.seek(min(position + total, size))
        total += 4 * int.from_bytes(file.read(8), "little")
        position += 8
    return total


def _read_order(file, path, name):
    count = int.from_bytes(file.read(8), "little")
    order = read_exactly(file, path, np.empty(count, "<i4"))
    if not np.array_equal(np.sort(order), np.arange(count)):
        raise FormatError(f"{path}: {name} of {count} entries is not a permutation of 0 to {count - 1}")
    return order


def _write_floats(file, vector):
    total = 0
    for part in (vector,) if isinstance(vector, np.ndarray) else vector:
        file.write(np.ascontiguousarray(part, "<f4"))
        total += part.size
    return total

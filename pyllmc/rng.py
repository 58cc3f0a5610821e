"""The generator of llm.c and PyTorch's CPU back end: MT19937, and the normal numbers made from it."""

import struct

import numpy as np
import numpy.random  # noqa: F401  NumPy would load it when it is first used, and lose a Ctrl-C of that moment

from .background import Background
from .errors import FormatError, InvalidArgument

STATE_WORDS = 624
STATE_BYTES = 2520
_LAYOUT = struct.Struct("<QiI624I2I")  # seed field, left, next, state, and two constants of the recurrence
_CONSTANTS = (0, 0x9908B0DF)
CHUNK = 1 << 16  # raw numbers held at once; they come as uint64, twice their size


class Mt19937:
    """MT19937 seeded like std::mt19937, with the low 32 bits of `seed`. Call sizes don't alter the stream."""

    def __init__(self, seed=42):
        if not 0 <= seed < 2**64:
            raise InvalidArgument(f"seed must be from 0 to 2**64-1, got {seed}")
        self._bits = np.random.MT19937()
        # RandomState keeps the original seeding of the generator; MT19937(seed) hashes the seed first
        self._bits.state = np.random.RandomState(int(seed) & 0xFFFFFFFF).get_state(legacy=False)
        self._untouched = True
        self._seed_field = 0  # llm.c stores a field for the seed and leaves it zero; kept as found

    def u32(self, n):
        """The next `n` numbers, uint32 (n,)."""
        return self._raw(n).astype(np.uint32)

    def _raw(self, n):
        """The same numbers as they come, uint64."""
        self._untouched = self._untouched and n == 0
        return self._bits.random_raw(n)

    def permutation(self, n):
        """A permutation of 0..n-1, int32 (n,), as llm.c draws it."""
        order = np.arange(n, dtype=np.int32)
        self.shuffle(order)
        return order

    def shuffle(self, order):
        """Permute the contiguous int32 vector in place: for i from the end, swap i and u32() mod (i+1)."""
        cells = memoryview(order)
        for top in range(len(order) - 1, 0, -CHUNK):
            below = np.arange(top, max(top - CHUNK, 0), -1, dtype=np.uint32)
            partners = self.u32(below.size) % (below + np.uint32(1))
            for i, j in zip(below.tolist(), partners.tolist(), strict=True):
                cells[i], cells[j] = cells[j], cells[i]

    def normal(self, n, mean=0.0, std=1.0):
        """`n` normal numbers, float32 (n,), as torch.Tensor.normal_ draws them on the CPU."""
        out = np.empty(n, np.float32)
        self.fill_normal(out, mean, std)
        return out

    def fill_normal(self, out, mean=0.0, std=1.0, run=None):
        """Fill the contiguous float32 vector `out` like `normal`, without a second array of its size.

        run: called as run(function, *arguments) for the arithmetic on each block, now or in another thread;
        `out` is then complete when all of those have returned. The values don't depend on it.
        """
        run = run or _now
        mean, std = np.float32(mean), np.float32(std)
        if out.size < 16:
            self._fill_one_by_one(out, mean, std)
            return
        whole = out.size - out.size % 16
        for start in range(0, whole, CHUNK):
            part = out[start : min(start + CHUNK, whole)]
            blocks = [(self._raw(part.size), part)]
            if start + part.size == whole < out.size:
                # the stream also holds a uniform for each of the rest, and only then the 16 of the last
                # group, which overlaps the block before: so one call does both, in this order
                self._raw(out.size - whole)
                blocks.append((self._raw(16), out[-16:]))
            run(_normal_blocks, blocks, mean, std)

    def _uniform53(self, n):
        words = self.u32(2 * n).astype(np.uint64)
        return ((words[0::2] << np.uint64(32) | words[1::2]) & np.uint64(2**53 - 1)).astype(
            np.float64
        ) * 2.0**-53

    def _fill_one_by_one(self, out, mean, std):
        """Below 16 values the source draws pairs instead: an angle, a radius; cosine first, then sine."""
        u = self._uniform53(out.size + out.size % 2).astype(np.float32)
        pairs = np.stack(_polar(radius_from=u[1::2], angle_from=u[0::2], log=_log1p_of_minus), axis=1)
        out[:] = pairs.reshape(-1)[: out.size] * std + mean

    def to_bytes(self):
        """The state as llm.c stores it: 2,520 bytes."""
        state = self._bits.state["state"]
        used = 0 if self._untouched else state["pos"]
        left = STATE_WORDS + 1 - state["pos"]  # numbers until the next block is made, that one counted
        return _LAYOUT.pack(self._seed_field, left, used, *state["key"].tolist(), *_CONSTANTS)

    @classmethod
    def from_bytes(cls, raw):
        """The generator whose `to_bytes` is `raw`. Raises FormatError for an impossible state."""
        if len(raw) != STATE_BYTES:
            raise FormatError(f"generator state has {len(raw)} bytes, expected {STATE_BYTES}")
        seed_field, left, used, *words = _LAYOUT.unpack(raw)
        key, constants = words[:STATE_WORDS], tuple(words[STATE_WORDS:])
        untouched = (left, used) == (1, 0)
        if constants != _CONSTANTS or not (
            untouched or (used >= 1 and left + used == STATE_WORDS + 1 and left >= 1)
        ):
            raise FormatError(
                f"generator state is impossible: left {left}, next {used}, constants {constants}"
            )
        self = cls()
        self._bits.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": STATE_WORDS if untouched else used},
        }
        self._untouched, self._seed_field = untouched, seed_field
        return self


def _now(function, *arguments):
    function(*arguments)


def _normal_blocks(blocks, mean, std):
    """Fill each `out` of the pairs (words, out) from as many raw numbers, of which 24 bits are used."""
    for words, out in blocks:
        _box_muller((words.astype(np.uint32) & np.uint32(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24), out, mean, std)


def _box_muller(uniforms, out, mean, std):
    """Normal numbers from groups of 16 uniforms: t pairs with t+8."""
    x, z = uniforms.reshape(-1, 2, 8), out.reshape(-1, 2, 8)
    cosines, sines = _polar(radius_from=np.float32(1) - x[:, 0], angle_from=x[:, 1], log=np.log)
    z[:, 0] = cosines * std + mean
    z[:, 1] = sines * std + mean


def _log1p_of_minus(u):
    return np.log1p(-u)


def _polar(radius_from, angle_from, log):
    """The two standard normal numbers of Box and Muller, in float32 steps like the source.

    Each function is taken in double and rounded once, as a good single-precision libm does: NumPy's own
    float32 sine, cosine and logarithm differ from one processor to the next.
    """
    radius = np.sqrt(np.float32(-2) * log(radius_from.astype(np.float64)).astype(np.float32))
    angle = (2 * np.pi * angle_from.astype(np.float64)).astype(np.float32).astype(np.float64)
    return radius * np.cos(angle).astype(np.float32), radius * np.sin(angle).astype(np.float32)


def initial_params(config, seed=42):
    """GPT-2's random initialisation, {name: float32 array} in file order, equal to llm.c's for the same seed.

    Weights N(0, 0.02), the two projections into the residual stream N(0, 0.02/sqrt(2L)), biases 0,
    LayerNorm gains 1, padding rows of wte 0. Needs a few megabytes beyond the result.
    """
    params = {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items()}
    for name in ("ln1w", "ln2w", "lnfw"):
        params[name].fill(1)
    generator = Mt19937(seed)
    residual = np.float32(0.02) * np.float32(1 / np.sqrt(2.0 * config.layers))
    # The stream has one order and is drawn in this thread; logarithms and sines take three times as long
    with Background() as background:

        def draw(array, std):
            generator.fill_normal(array.reshape(-1), 0, std, background.run)

        draw(params["wte"][: config.vocab], 0.02)
        draw(params["wpe"], 0.02)
        for layer in range(config.layers):
            for name in ("qkvw", "attprojw", "fcw", "fcprojw"):
                draw(params[name][layer], residual if name.endswith("projw") else 0.02)
    return params

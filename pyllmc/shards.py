"""llm.c token shards: a header, then 16-bit token ids."""

import glob
import os
from pathlib import Path

import numpy as np

from .atomic import atomic_write
from .errors import FormatError, InvalidArgument
from .headers import HEADER_BYTES, SHARD, check_size, file_size, pack_header, read_header

TOKEN_BYTES = 2
MAX_ID = 65535
MAX_TOKENS = 2**31 - 1  # the count is an int32; such a file has 4 GiB, so offsets need 64 bits
WRITE_CHUNK = 1 << 22  # ids checked and converted at once


class Shard:
    """An open token shard. Only the asked-for window is read: memory does not grow with the file."""

    def __init__(self, path):
        self.path = Path(path)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            self.tokens = _read_count(self._file, path)
        except BaseException:
            self._file.close()
            raise

    def read_into(self, out, start):
        """Fill the contiguous little-endian uint16 array `out` with the tokens from index `start` on."""
        if not 0 <= start <= self.tokens - out.size:
            raise InvalidArgument(
                f"{self.path}: tokens {start} to {start + out.size} asked for, it has {self.tokens}"
            )
        view = memoryview(out).cast("B")
        offset = HEADER_BYTES + start * TOKEN_BYTES  # Python integers: no 2 GiB limit
        while view:
            count = os.preadv(self._file.fileno(), [view], offset)
            if count == 0:
                raise FormatError(
                    f"{self.path}: the file became shorter while in use, it ends at byte {offset}"
                )
            view, offset = view[count:], offset + count

    def read(self, start, count):
        """`count` tokens from index `start` on, as a new uint16 array."""
        out = np.empty(count, "<u2")
        self.read_into(out, start)
        return out

    def will_need(self, start, count):
        """Ask the system to fetch these tokens into its page cache; returns at once."""
        if hasattr(os, "posix_fadvise"):
            offset = HEADER_BYTES + start * TOKEN_BYTES
            os.posix_fadvise(self._file.fileno(), offset, count * TOKEN_BYTES, os.POSIX_FADV_WILLNEED)

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def open_shard(path):
    """Open and check the shard at `path`. Raises FormatError for a foreign, truncated or overlong file."""
    return Shard(path)


def _read_count(file, path):
    count = int(read_header(file, path, SHARD)[2])
    if count < 0:
        raise FormatError(f"{path}: token count (header[2]) is {count}, expected 0 or more")
    size = file_size(file)
    check_size(
        path, SHARD, size, HEADER_BYTES + count * TOKEN_BYTES,
        f"the {count} tokens its header counts; it has room for {(size - HEADER_BYTES) / TOKEN_BYTES:g}",
    )  # fmt: skip
    return count


def write_shard(path, tokens):
    """Write a one-dimensional sequence of ids as a shard; the file appears complete or not at all.

    Raises InvalidArgument, before anything is written, naming an id outside 0 to 65535 and its position.
    """
    tokens = np.asarray(tokens)
    if tokens.size == 0 and tokens.ndim == 1:
        tokens = tokens.astype(np.uint16)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise InvalidArgument(
            f"{path}: tokens must be a row of integers, got {tokens.dtype} of shape {tokens.shape}"
        )
    if tokens.size > MAX_TOKENS:
        raise InvalidArgument(
            f"{path}: {tokens.size} tokens, a shard counts at most {MAX_TOKENS}: write several"
        )
    starts = range(0, tokens.size, WRITE_CHUNK)
    for start in starts:
        part = tokens[start : start + WRITE_CHUNK]
        wrong = np.flatnonzero((part < 0) | (part > MAX_ID))
        if wrong.size:
            first = int(wrong[0])
            raise InvalidArgument(
                f"{path}: token id {part[first]} at position {start + first} does not fit 16 bits, "
                f"0 to {MAX_ID}"
            )
    with atomic_write(path) as file:
        file.write(pack_header(SHARD, SHARD.versions[0], {2: tokens.size}))
        for start in starts:
            file.write(tokens[start : start + WRITE_CHUNK].astype("<u2"))


def find_shards(pattern_or_paths):
    """Shard paths: of a glob pattern, sorted by name; of a list of paths, as given.

    Raises InvalidArgument when nothing matches.
    """
    if not isinstance(pattern_or_paths, (str, os.PathLike)):
        paths = [Path(path) for path in pattern_or_paths]
        if not paths:
            raise InvalidArgument("the list of token shards is empty")
        return paths
    pattern = os.fspath(pattern_or_paths)
    names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
    if not names:
        raise InvalidArgument(f"no token shard matches {pattern!r} (looked from {os.getcwd()})")
    return [Path(name) for name in names]


class ShardWriter:
    """Cuts a stream of tokens into shards `<stem>_000000.bin`, … of at most `shard_tokens` each.

    All are full but the last two, which share what remains: a loader cannot use a shard of a few tokens.
    Two shards are held in memory. first: number of the first shard. counts, waiting: as another writer had
    them, to go on after it.
    """

    def __init__(self, folder, stem, shard_tokens, first=0, counts=None, waiting=None):
        self.folder, self.stem, self.shard_tokens, self.first = Path(folder), stem, shard_tokens, first
        self.counts = dict(counts or {})  # file name: tokens, of the shards that are complete
        self._waiting = [] if waiting is None else [waiting]
        self._size = sum(part.size for part in self._waiting)

    @property
    def tokens(self):
        """Tokens given so far."""
        return sum(self.counts.values()) + self._size

    def append(self, tokens):
        """Add a uint16 array to the stream."""
        self._waiting.append(tokens)
        self._size += tokens.size
        if self._size >= 2 * self.shard_tokens:
            stream = self.waiting()
            full = (stream.size // self.shard_tokens - 1) * self.shard_tokens
            for start in range(0, full, self.shard_tokens):
                self._write(stream[start : start + self.shard_tokens])
            self._waiting, self._size = [stream[full:]], stream.size - full

    def waiting(self):
        """The tokens that no shard holds yet, uint16 (n,)."""
        return np.concatenate([np.empty(0, np.uint16), *self._waiting])

    def finish(self):
        """Write what remains and return {file name: tokens} of all shards."""
        if self._size:
            stream = self.waiting()
            for part in np.array_split(stream, -(-stream.size // self.shard_tokens)):
                self._write(part)
            self._waiting, self._size = [], 0
        return self.counts

    def _write(self, tokens):
        name = f"{self.stem}_{self.first + len(self.counts):06d}.bin"
        write_shard(self.folder / name, tokens)
        self.counts[name] = tokens.size

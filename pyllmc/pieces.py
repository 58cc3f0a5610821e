"""Where text may be cut: to encode it piece by piece, or to hold a part of it out for validation."""

import re

import numpy as np

from .errors import InvalidArgument
from .shards import MAX_ID

PIECE_BYTES = 1 << 22  # text encoded at once
# A line break between two visible ASCII characters: neither GPT-2's splitting nor UTF-8 crosses it, so
# encoding the text up to here and from here on gives the same tokens as encoding the whole.
SEAM = re.compile(rb"[!-~]\n(?=[!-~])")


def pieces(raw, begin, end, piece_bytes=None):
    """Slices of piece_bytes or little more (default: PIECE_BYTES) of raw[begin:end], to encode on their own.

    raw: bytes or a mapped file, of which only the surroundings of the seams are read.
    """
    while begin < end:
        seam = SEAM.search(raw, begin + (piece_bytes or PIECE_BYTES), end)
        stop = seam.end() if seam else end
        yield slice(begin, stop)
        begin = stop


def cut(raw, position):
    """A good place to cut near `position`: the start of a line, or at least not inside a character."""
    seam = SEAM.search(raw, position, position + 4096)
    if seam:
        return seam.end()
    while position < len(raw) and raw[position] & 0xC0 == 0x80:
        position += 1
    return position


def held_out(sizes, val_fraction):
    """Which documents go to validation whole: each that keeps its share of the bytes so far in bounds."""
    seen = held = 0
    chosen = []
    for size in sizes:
        seen += size
        chosen.append(0 < size and held + size <= val_fraction * seen)
        held += size * chosen[-1]
    return chosen


def check_fits_shards(tokenizer):
    """Raise InvalidArgument for a vocabulary with ids that 16 bits can't hold."""
    if tokenizer.n_vocab > MAX_ID + 1:
        raise InvalidArgument(
            f"{tokenizer.name} has {tokenizer.n_vocab} ids, a shard holds ids up to {MAX_ID}"
        )


def encode_piece(tokenizer, raw, begin, name):
    """uint16 ids of the bytes `raw`, which start at byte `begin` of the text `name`."""
    try:
        return tokenizer.encode_bytes(raw).astype(np.uint16)
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{name}: byte {begin + error.start} is not UTF-8 text: convert the file, or use the "
            'tokenizer "bytes"'
        ) from None

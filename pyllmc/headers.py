"""The 1024-byte header that begins each of llm.c's files: 256 little-endian int32, magic number first."""

import os
from dataclasses import dataclass

import numpy as np

from .errors import FormatError

HEADER_BYTES = 1024
HEADER_INTS = HEADER_BYTES // 4


@dataclass(frozen=True)
class Kind:
    """One file format: its name in messages, magic number, understood versions, what to do with others, and what
    makes one from something else."""

    name: str
    magic: int
    versions: tuple
    remedy: str
    made_by: str = ""

    @property
    def one(self):
        """The name with its article."""
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name}"


CHECKPOINT = Kind(
    "model checkpoint", 20240326, (3, 5),
    "export the model again as version 3 (fp32) or 5 (bf16); older versions lack the padded vocabulary "
    "or mix two precisions (python -m pyllmc.convert writes both from a Hugging Face folder)",
    "python -m pyllmc.convert makes one from a Hugging Face folder or a .pt",
)  # fmt: skip
DEBUG_STATE = Kind("debug state", 20240327, (2,), "write it again from a version-3 checkpoint")
TOKENIZER = Kind("tokenizer", 20240328, (2,), "write it again; version 1 lacks the end-of-text id")
SHARD = Kind(
    "token shard", 20240520, (1,), "tokenize the data again", "python -m pyllmc.data prepare makes them from text"
)
MULTIPLE_CHOICE = Kind(
    "multiple-choice evaluation", 20240522, (1,), "write it again from its source",
    "python -m pyllmc.data hellaswag makes one from JSONL",
)  # fmt: skip
OPTIMIZER_STATE = Kind(
    "optimizer state", 20240527, (1,), "start from the weights alone, with a fresh optimizer"
)
KINDS = (CHECKPOINT, DEBUG_STATE, TOKENIZER, SHARD, MULTIPLE_CHOICE, OPTIMIZER_STATE)


def read_header(file, path, kind):
    """The 256 integers at the start of the open binary `file`, magic and version checked against `kind`.

    Raises FormatError that names the format actually found, a foreign byte order or a wrong version.
    """
    raw = file.read(HEADER_BYTES)
    if len(raw) >= 4:
        _check_magic(raw, path, kind)
    if len(raw) < HEADER_BYTES:
        raise FormatError(
            f"{path}: {len(raw)} bytes, too short for the {HEADER_BYTES}-byte header of {kind.one}"
        )
    header = np.frombuffer(raw, "<i4")
    version = int(header[1])
    if version not in kind.versions:
        read = " and ".join(map(str, kind.versions))
        raise FormatError(
            f"{path}: {kind.name} has version {version} (header[1]), this reads version {read}: {kind.remedy}"
        )
    return header


def _check_magic(raw, path, kind):
    magic = int.from_bytes(raw[:4], "little", signed=True)
    if magic == kind.magic:
        return
    swapped = int.from_bytes(raw[:4], "big", signed=True)
    for other in KINDS:
        if magic == other.magic:
            raise FormatError(f"{path}: expected {kind.one}, but this is {other.one} (magic {magic})")
        if swapped == other.magic:
            raise FormatError(
                f"{path}: {other.one} with swapped bytes (magic {swapped} read as {magic}): it was "
                "written on a big-endian machine; these files are little-endian"
            )
    raise FormatError(
        f"{path}: not {kind.one}: it starts with {bytes(raw[:4])!r} ({magic}), expected magic {kind.magic}"
        + (f"; {kind.made_by}" if kind.made_by else "")
    )


def kind_of(path):
    """The Kind of the file at `path` by its first bytes, or None."""
    with open(path, "rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    return next((kind for kind in KINDS if kind.magic == magic), None)


def pack_header(kind, version, fields):
    """1024 bytes: magic, version, then `fields` as {position: int32 value}; the rest zero."""
    header = np.zeros(HEADER_INTS, "<i4")
    header[0], header[1] = kind.magic, version
    for position, value in fields.items():
        header[position] = value
    return header.tobytes()


def file_size(file):
    """Bytes in the open `file`."""
    return os.fstat(file.fileno()).st_size


def check_size(path, kind, found, expected, because):
    """Raise FormatError unless a file of `found` bytes has exactly the `expected` ones."""
    if found != expected:
        word = "truncated" if found < expected else "followed by bytes that do not belong"
        raise FormatError(f"{path}: {kind.name} is {word}: {found} bytes, expected {expected} for {because}")


def read_exactly(file, path, array):
    """Fill the contiguous `array` from the open `file`; FormatError where the file ends early."""
    view = memoryview(array).cast("B")
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise FormatError(f"{path}: ends at byte {file.tell()}, {len(view) - done} bytes too early")
        done += count
    return array

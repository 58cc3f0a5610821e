"""From files and folders to ranges of bytes, each of which a process can read and encode on its own.

Where a file is cut depends on the file alone, never on the number of processes, and neither do the tokens.
"""

import contextlib
import glob
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError, InvalidArgument, Unavailable
from ..headers import kind_of
from ..pieces import cut, held_out, pieces
from .catalogue import SETS, where_to_get

RANGE_BYTES = 1 << 20  # read and encoded at once: some 250,000 tokens of GPT-2's
TEXT, MARKED, JSONL, PARQUET = "text", "marked text", "JSONL", "Parquet"
KINDS = {
    ".txt": TEXT, ".text": TEXT, ".md": TEXT, ".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".parquet": PARQUET,
}  # fmt: skip
PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip", ".tar", ".7z")


@dataclass(frozen=True)
class Source:
    """One input file. kind: of KINDS, or MARKED for text with a separator. size in bytes, modified in ns: to notice
    that it was changed."""

    path: str
    kind: str
    size: int
    modified: int


@dataclass(frozen=True)
class Range:
    """Bytes begin to end of source number `source`, for Parquet the row group `begin`. opens: a document starts
    here, if the source has one only. split: "train" or "val" where that is known before reading. size: bytes, to
    show progress."""

    source: int
    begin: int
    end: int
    size: int
    opens: bool = True
    split: str | None = None


def find_sources(names, separator=None):
    """(list of Source, number of files in folders that are of no known kind) of files, folders and patterns.

    Raises InvalidArgument for a name that matches nothing, or a packed file.
    """
    paths, others = [], 0
    for name in map(os.fspath, names):
        if os.path.isdir(name):
            found = sorted(path for path in Path(name).rglob("*") if path.is_file() and not is_hidden(path, name))
            known = [os.fspath(path) for path in found if path.suffix.lower() in KINDS]
            others += len(found) - len(known)
            if not known:
                raise InvalidArgument(f"{name}: no file in this folder ends in {', '.join(KINDS)}")
            paths += known
        elif os.path.exists(name):
            paths.append(name)
        elif glob.has_magic(name) and glob.glob(name):
            paths += sorted(path for path in glob.glob(name) if os.path.isfile(path))
        else:
            hint = f": {where_to_get(name)}" if name in SETS else f" (looked from {os.getcwd()})"
            raise InvalidArgument(f"{name}: no such file or folder{hint}")
    seen = set()
    for path in paths:
        if os.path.realpath(path) in seen:
            raise InvalidArgument(f"{path} is named twice")
        seen.add(os.path.realpath(path))
    return [source_of(path, separator) for path in paths], others


def is_hidden(path, folder):
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def source_of(path, separator):
    suffix = Path(path).suffix.lower()
    if suffix in PACKED:
        raise InvalidArgument(f"{path}: a packed file: unpack it first")
    if not os.path.isfile(path):
        raise InvalidArgument(f"{path}: not a regular file, which can be read in pieces: save it as one")
    kind = KINDS.get(suffix, TEXT)
    state = os.stat(path)
    made = kind_of(path)  # an unreadable one ends the run here and not in an hour
    if made:
        raise InvalidArgument(f"{path}: a {made.name} and no text: python -m pyllmc.data inspect shows what is in it")
    return Source(path, MARKED if kind == TEXT and separator else kind, state.st_size, state.st_mtime_ns)


def ranges(sources, separator=None, val=0.0, start=(0, 0)):
    """Yield the Ranges of all sources in order, from the one on that begins at start = (source, begin).

    val: fraction to hold out. Of text files whose documents are known beforehand it is decided here which are held
    out: whole ones or, where they are too few, the end of each. All else is decided as the documents come.
    """
    texts = [number for number, source in enumerate(sources) if source.kind == TEXT]
    whole = dict(zip(texts, held_out([sources[number].size for number in texts], val), strict=True)) if val else {}
    ends = len(texts) == len(sources) and not any(whole.values())
    for number in range(start[0], len(sources)):
        source = sources[number]
        if source.kind == PARQUET:
            found = parquet_ranges(source, number)
        elif source.kind == TEXT:
            share = None if not whole else val if ends else float(whole[number])
            found = text_ranges(source, number, share)
        else:
            found = line_ranges(source, number, b"\n" if source.kind == JSONL else separator.encode())
        yield from (part for part in found if (number, part.begin) >= start)


@contextlib.contextmanager
def mapped(source):
    """The file's bytes, of which only what is looked at is read."""
    if not source.size:
        yield b""
        return
    with open(source.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        yield raw


def text_ranges(source, number, share):
    """One document. share: of it to hold out, from its end; None: decided later."""
    with mapped(source) as raw:
        size = len(raw)
        end = size if not share else 0 if share == 1 else cut(raw, size - int(size * share))
        for split, first, last in (("train", 0, end), ("val", end, size)):
            for piece in pieces(raw, first, last, RANGE_BYTES):
                yield Range(
                    number, piece.start, piece.stop, piece.stop - piece.start, piece.start == first,
                    None if share is None else split,
                )  # fmt: skip
    if not size:
        yield Range(number, 0, 0, 0)


def line_ranges(source, number, mark):
    """Ranges that end after a `mark`: documents are whole."""
    with mapped(source) as raw:
        begin, size = 0, len(raw)
        while begin < size:
            found = raw.find(mark, begin + RANGE_BYTES)
            end = size if found < 0 else found + len(mark)
            yield Range(number, begin, end, end - begin)
            begin = end


def parquet_ranges(source, number):
    with parquet_file(source.path) as file:
        groups = file.metadata.num_row_groups
        for group in range(groups):
            done, more = source.size * group // groups, source.size * (group + 1) // groups
            yield Range(number, group, group + 1, more - done)


@contextlib.contextmanager
def parquet_file(path):
    """The open pyarrow.parquet.ParquetFile. Raises Unavailable without pyarrow, FormatError for another file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Unavailable(f"{path}: reading Parquet needs the package pyarrow: pip install pyarrow") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise FormatError(f"{path}: not a whole Parquet file: {str(error).splitlines()[0]}") from error

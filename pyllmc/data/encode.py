"""What a process does with a range: read it, take its documents apart, turn them into tokens."""

import json
from dataclasses import dataclass

import numpy as np

from ..errors import FormatError, InvalidArgument
from ..pieces import encode_piece, pieces
from .inputs import JSONL, MARKED, PARQUET, TEXT, parquet_file


@dataclass(frozen=True)
class Recipe:
    """What decides the tokens of a document: the tokenizer, and where in a file its text is."""

    tokenizer: object
    separator: str | None = None
    text_field: str = "text"
    skip_bad: bool = False


@dataclass(frozen=True)
class Encoded:
    """Documents of one range. tokens: uint16 (n,), end-of-text before each document. lengths: tokens of each, int64
    (documents,). places: lines, bytes or rows that the range has, which `faults` count from its beginning: (place,
    reason) of each document that is unusable. opened: documents of the input that start here."""

    tokens: np.ndarray
    lengths: np.ndarray
    opened: int
    empty: int = 0
    places: int = 0
    faults: tuple = ()


PLACE = {JSONL: "line", MARKED: "byte", PARQUET: "row"}


def encode_range(recipe, source, part):
    """The Encoded of a Range of the Source.

    Raises InvalidArgument for text that is no UTF-8, FormatError where the file isn't what it was.
    """
    if source.kind == TEXT:
        return encode_text(recipe, source, part)
    tokens, lengths, faults, empty = [], [], [], 0
    eot = np.array([recipe.tokenizer.eot], np.uint16)
    documents, places = READERS[source.kind](recipe, source, part)
    for place, document in documents:
        if isinstance(document, Fault):
            faults.append((place, document.reason))
        elif not document:
            empty += 1
        else:
            try:
                slices = pieces(document, 0, len(document))
                parts = [encode_piece(recipe.tokenizer, document[piece], piece.start, "") for piece in slices]
            except InvalidArgument:
                faults.append((place, 'not UTF-8 text: convert it, or use the tokenizer "bytes"'))
                if recipe.skip_bad:
                    continue
                break
            tokens += [eot, *parts]
            lengths.append(1 + sum(part.size for part in parts))
        if faults and not recipe.skip_bad:
            break
    return Encoded(
        np.concatenate([eot[:0], *tokens]), np.array(lengths, np.int64), len(lengths), empty, places, tuple(faults)
    )


def encode_text(recipe, source, part):
    """A piece of a file that is one document."""
    raw = read_bytes(source, part)
    if not raw:
        return Encoded(np.empty(0, np.uint16), np.empty(0, np.int64), 0, empty=1)
    tokens = encode_piece(recipe.tokenizer, raw, part.begin, source.path)
    if part.opens:
        tokens = np.concatenate([np.array([recipe.tokenizer.eot], np.uint16), tokens])
    opened = int(part.begin == 0)  # an end that is held out is still part of it
    return Encoded(tokens, np.array([tokens.size], np.int64), opened)


@dataclass(frozen=True)
class Fault:
    """In the place of a document: why there is none."""

    reason: str


def json_documents(recipe, source, part):
    """(line from 1 on, its text as bytes or a Fault) of each line with something on it, and how many lines."""
    raw = read_bytes(source, part)
    if part.begin == 0:
        raw = raw.removeprefix(b"\xef\xbb\xbf")  # what some editors put first
    lines = raw.split(b"\n")
    if not lines[-1]:
        lines.pop()

    def documents():
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, text_of(line, recipe.text_field)

    return documents(), len(lines)


def text_of(line, field):
    record = json_object(line)
    if isinstance(record, Fault):
        return record
    if field not in record:
        return Fault(f"no field {field!r}, it has {', '.join(map(repr, list(record)[:8])) or 'none'}")
    if not isinstance(record[field], str):
        return Fault(f"field {field!r} is {type(record[field]).__name__}, expected text")
    return utf8(record[field])


def json_object(line):
    """The dict in a line of JSONL, or a Fault."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Fault(f"not UTF-8 from byte {error.start} of the line on")
    except (ValueError, RecursionError) as error:
        return Fault(f"not JSON: {error}")
    if not isinstance(record, dict):
        return Fault(f"expected a JSON object, got {type(record).__name__}")
    return record


def utf8(text):
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can spell it, as \ud800
        return Fault("holds half of a character (a lone surrogate)")


def marked_documents(recipe, source, part):
    """(byte from 0 on, text) of what stands between the separators, and how many bytes the range has."""
    raw, mark = read_bytes(source, part), recipe.separator.encode()
    blank = not mark.strip()

    def documents():
        begin = 0
        while begin < len(raw):
            found = raw.find(mark, begin)
            end = len(raw) if found < 0 else found
            following = min(end + len(mark), len(raw))
            if blank:  # part of the text, like a blank line between paragraphs
                yield begin, raw[begin:following] if raw[begin:end].strip() else b""
            else:
                yield begin, raw[begin:end].strip()
            begin = following

    return documents(), len(raw)


def parquet_documents(recipe, source, part):
    """(row from 1 on, text or Fault) of one row group, and how many rows it has."""
    with parquet_file(source.path) as file:
        names = file.schema_arrow.names
        if recipe.text_field not in names:
            raise InvalidArgument(f"{source.path}: no column {recipe.text_field!r}, it has {', '.join(names)} (--text-field)")
        column = file.read_row_group(part.begin, columns=[recipe.text_field]).column(0)

    def documents():
        for number, cell in enumerate(column, 1):
            text = cell.as_py()
            if isinstance(text, str):
                yield number, utf8(text)
            else:
                yield number, Fault(f"column {recipe.text_field!r} is {type(text).__name__}, expected text")

    return documents(), len(column)


READERS = {JSONL: json_documents, MARKED: marked_documents, PARQUET: parquet_documents}


def read_bytes(source, part):
    with open(source.path, "rb") as file:
        file.seek(part.begin)
        raw = file.read(part.end - part.begin)
    if len(raw) != part.end - part.begin:
        raise FormatError(f"{source.path}: the file became shorter while in use, expected {source.size} bytes")
    return raw

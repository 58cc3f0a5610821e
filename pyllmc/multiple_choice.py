"""llm.c multiple-choice evaluations (HellaSwag): a context and completions, one of them right."""

from dataclasses import dataclass

import numpy as np

from .atomic import atomic_write
from .errors import FormatError, InvalidArgument
from .headers import HEADER_BYTES, MULTIPLE_CHOICE, file_size, pack_header, read_header
from .shards import MAX_ID

START = 65535  # first number of each example: a mark that no token can be confused with
MAX_BYTES = 65535  # of an example: its length is 16 bits
PREFIX = 5  # mark, bytes, index, label, number of completions


@dataclass(frozen=True)
class Example:
    """context and each of the completions: uint16 arrays of token ids. label: index of the right one."""

    index: int
    label: int
    context: np.ndarray
    completions: tuple


def read_multiple_choice(path, vocab=None):
    """All examples of the evaluation at `path`, as a list of Example.

    Every length is checked against the example it is in, and with `vocab` every id against that.
    Raises FormatError naming example and byte offset.
    """
    with open(path, "rb") as file:
        header = read_header(file, path, MULTIPLE_CHOICE)
        count, longest = int(header[2]), int(header[3])
        size = file_size(file)
        if count < 0 or longest < 0 or size % 2:
            raise FormatError(
                f"{path}: {count} examples, longest {longest}, {size} bytes: no such file is possible"
            )
        body = np.frombuffer(file.read(), "<u2")
    examples, position = [], 0
    for index in range(count):
        words, where = body[position:], f"{path}: example {index} at byte {HEADER_BYTES + 2 * position}"
        example, used = _parse(words, where, index, longest)
        ids = np.concatenate([example.context, *example.completions])
        if vocab is not None and ids.size and ids.max() >= vocab:
            raise FormatError(f"{where}: token id {ids.max()}, vocabulary is {vocab}")
        examples.append(example)
        position += used
    if position != body.size:
        raise FormatError(
            f"{path}: {2 * (body.size - position)} bytes follow the last of {count} examples (header[2])"
        )
    return examples


def write_multiple_choice(path, examples):
    """Write Examples, numbered anew from 0; the file appears complete or not at all.

    Raises InvalidArgument, before anything is written, naming the example that the format can't hold: without
    context or completions, with an empty one, a label outside, ids above 65535, or more than 65535 bytes.
    """
    packed = [_pack(example, index, f"{path}: example {index}") for index, example in enumerate(examples)]
    longest = max((2 * words.size for words in packed), default=0)
    with atomic_write(path) as file:
        file.write(pack_header(MULTIPLE_CHOICE, MULTIPLE_CHOICE.versions[0], {2: len(packed), 3: longest}))
        for words in packed:
            file.write(words)


def _pack(example, index, where):
    """The numbers of one example, little-endian uint16."""
    if not 0 <= example.label < len(example.completions):
        raise InvalidArgument(f"{where}: label {example.label} with {len(example.completions)} completions")
    runs = []
    for part, ids in enumerate((example.context, *example.completions)):
        ids = np.asarray(ids)
        if not ids.size or ids.min() < 0 or ids.max() > MAX_ID:
            name = f"completion {part - 1}" if part else "context"
            what = f"id {ids.max()}, the format holds ids from 0 to {MAX_ID}" if ids.size else "no token"
            raise InvalidArgument(f"{where}: {name} has {what}")
        runs += [[ids.size], ids]
    size = 2 * (PREFIX + sum(map(len, runs)))
    if size > MAX_BYTES:
        raise InvalidArgument(f"{where}: {size} bytes long, the format allows {MAX_BYTES}")
    prefix = [START, size, index & 0xFFFF, example.label, len(example.completions)]
    return np.concatenate([prefix, *runs]).astype("<u2")


def _parse(words, where, index, longest):
    """(Example, numbers used) of the example at the start of `words`."""
    if words.size < PREFIX:
        raise FormatError(f"{where}: the file ends here")
    start, size, number, label, choices = map(int, words[:PREFIX])
    if start != START:
        raise FormatError(f"{where}: starts with {start}, expected the mark {START}")
    if size % 2 or size > longest or size > 2 * words.size:
        raise FormatError(
            f"{where}: {size} bytes long, expected an even number within the file, at most {longest}"
        )
    if number != index & 0xFFFF:
        raise FormatError(f"{where}: numbered {number}, expected {index & 0xFFFF}")
    if not label < choices:
        raise FormatError(f"{where}: label {label} with {choices} completions")
    rest, used, runs = words[: size // 2], PREFIX, []
    for part in range(1 + choices):
        length = int(rest[used]) if used < rest.size else -1
        if length < 1 or used + 1 + length > rest.size:
            name = f"completion {part - 1}" if part else "context"
            raise FormatError(
                f"{where}: {name} has length {length}, which does not fit the example's {size} bytes"
            )
        runs.append(rest[used + 1 : used + 1 + length])
        used += 1 + length
    if used != rest.size:
        raise FormatError(f"{where}: says {size} bytes, its parts have {2 * used}")
    return Example(number, label, runs[0], tuple(runs[1:])), used

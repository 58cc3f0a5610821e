"""llm.c tokenizer files: the bytes of every token, enough to turn ids back into text."""

from .atomic import atomic_write
from .errors import FormatError, InvalidArgument
from .headers import HEADER_BYTES, TOKENIZER, pack_header, read_header

MAX_LENGTH = 255  # a token's length is one byte
MAX_TOKENS = 1 << 24  # far above any vocabulary: a larger count is damage


def read_tokenizer_file(path):
    """(token bytes by id: list of bytes, end-of-text id). Raises FormatError naming token and byte offset."""
    with open(path, "rb") as file:
        header = read_header(file, path, TOKENIZER)
        body = file.read()
    count, eot = int(header[2]), int(header[3])
    if not 1 <= count <= MAX_TOKENS or not 0 <= eot < count:
        raise FormatError(
            f"{path}: {count} tokens (header[2]) with end-of-text id {eot} (header[3]): impossible"
        )
    table, position = [], 0
    for token in range(count):
        end = position + 1 + body[position] if position < len(body) else len(body) + 1
        if end > len(body):
            raise FormatError(
                f"{path}: ends within token {token} of {count}, at byte {HEADER_BYTES + position}"
            )
        table.append(body[position + 1 : end])
        position = end
    if position != len(body):
        raise FormatError(f"{path}: {len(body) - position} bytes follow the last of {count} tokens")
    return table, eot


def write_tokenizer_file(path, table, eot):
    """Write token bytes `table` (list by id) and the end-of-text id. Raises InvalidArgument."""
    if not 0 <= eot < len(table):
        raise InvalidArgument(f"{path}: end-of-text id {eot} is outside the {len(table)} tokens")
    for token, text in enumerate(table):
        if len(text) > MAX_LENGTH:
            raise InvalidArgument(
                f"{path}: token {token} has {len(text)} bytes, the format allows {MAX_LENGTH}"
            )
    with atomic_write(path) as file:
        file.write(pack_header(TOKENIZER, TOKENIZER.versions[0], {2: len(table), 3: eot}))
        file.write(b"".join(bytes([len(text)]) + text for text in table))

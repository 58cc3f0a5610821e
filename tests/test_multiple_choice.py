"""Multiple-choice evaluation files, written here by hand from the description of the format."""

import numpy as np
import pytest

from pyllmc.errors import FormatError
from pyllmc.formats import read_multiple_choice

EXAMPLES = [(2, [5, 6, 7], [[1], [2, 3], [4], [9, 9, 9]]), (0, [8], [[1, 2], [3, 4], [5, 6], [7, 8]])]


def written(path, examples=EXAMPLES, header=(), words=()):
    """The file of `examples`, with some header fields or words (by position in the body) replaced."""
    body, longest = [], 0
    for index, (label, context, completions) in enumerate(examples):
        parts = [word for run in (context, *completions) for word in (len(run), *run)]
        size = 2 * (5 + len(parts))
        body += [65535, size, index, label, len(completions), *parts]
        longest = max(longest, size)
    head = np.zeros(256, "<i4")
    head[:4] = 20240522, 1, len(examples), longest
    body = np.array(body, "<u2")
    for position, value in header:
        head[position] = value
    for position, value in words:
        body[position] = value
    path.write_bytes(head.tobytes() + body.tobytes())
    return path


def test_content(tmp_path):
    read = read_multiple_choice(written(tmp_path / "e.bin"), vocab=10)
    assert [(e.label, e.context.tolist(), [c.tolist() for c in e.completions]) for e in read] == EXAMPLES


@pytest.mark.parametrize(
    ("header", "words", "text"),
    [
        ([(1, 2)], [], "version 2"),
        ([(2, 1)], [], "bytes follow the last of 1 examples"),
        ([(2, 3)], [], "example 2 at byte .*: the file ends here"),
        ([(2, -1)], [], "-1 examples"),
        ([(3, 10)], [], "at most 10"),
        ([], [(0, 1)], "starts with 1, expected the mark 65535"),
        ([], [(1, 37)], "37 bytes long"),
        ([], [(1, 34)], "length 3, which does not fit|its parts have"),
        ([], [(2, 9)], "numbered 9, expected 0"),
        ([], [(3, 4)], "label 4 with 4 completions"),
        ([], [(4, 5)], "completion 4 has length"),
        ([], [(4, 3)], "its parts have"),
        ([], [(5, 60000)], "context has length 60000"),
        ([], [(6, 10)], "token id 10, vocabulary is 10"),
    ],
)
def test_damage_is_named(header, words, text, tmp_path):
    with pytest.raises(FormatError, match=text):
        read_multiple_choice(written(tmp_path / "e.bin", header=header, words=words), vocab=10)


def test_every_truncation_is_noticed(tmp_path):
    raw = written(tmp_path / "e.bin").read_bytes()
    for size in range(1024, len(raw)):
        (tmp_path / "e.bin").write_bytes(raw[:size])
        with pytest.raises(FormatError):
            read_multiple_choice(tmp_path / "e.bin")

"""Options in TOML: what is read, what is refused, and that what is written can be read."""

import math
import re

import pytest

from pyllmc.cli import Option
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.options_file import options_text, read_options, toml_of, tomllib


def small(text):
    if text not in ("a", "1"):
        raise InvalidArgument(f"expected a, got {text!r}")
    return text.upper()


GROUPS = {
    "some": (
        Option("count", "-c --count", "", int), Option("rate", "-l --learning-rate", "", float), Option("name", "--name", ""),
    ),
    "others": (
        Option("flag", "-f --flag", "", bool), Option("no_plot", "--no-plot", "", switch=True),
        Option("words", "--words", "", many=True), Option("letter", "--letter", "", small),
    ),
}  # fmt: skip
ROWS = [row for rows in GROUPS.values() for row in rows]


@pytest.fixture
def read(tmp_path):
    def reading(text):
        path = tmp_path / "x.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_options(path, ROWS)

    return reading


def test_every_kind(read):
    assert read('count = 3\nlearning-rate = 1\nname = "a b" # c\nflag = true\nno-plot = false\nwords = ["x", "y"]\nletter = "a"') == {
        "count": 3, "rate": 1.0, "name": "a b", "flag": True, "no_plot": False, "words": ["x", "y"], "letter": "A",
    }  # fmt: skip
    assert read("") == {} and isinstance(read("learning-rate = 1")["rate"], float) and read("letter = 1") == {"letter": "1"}


@pytest.mark.parametrize(
    "text, part",
    [("coutn = 3", "unknown option 'coutn': did you mean 'count'?"), ("c = 3", "unknown option 'c': did you mean 'count'?"),
     ("no_plot = true", "did you mean 'no-plot'?"), ("xyzzy = 3", "unknown option 'xyzzy': --help lists"),
     ("[some]\ncount = 3", "unknown option 'some': options stand by themselves, not in a table"),
     ('count = "3"', "count: expected a whole number, got '3'"), ("count = 3.0", "a whole number, got 3.0"),
     ("count = true", "a whole number, got True"), ('learning-rate = "x"', "learning-rate: expected a number, got 'x'"),
     ("learning-rate = false", "expected a number"), ("name = 3", "name: expected a text in quotes, got 3"),
     ("flag = 1", "flag: expected true or false, got 1"), ('no-plot = "yes"', "expected true or false"),
     ('words = "x"', "words: expected a list, got 'x'"), ("words = [3]", "words: expected a text in quotes, got 3"),
     ('letter = "b"', "letter: expected a, got 'b'"), ("letter = [1]", "expected a text or a number"),
     ("learning-rate = 1" + 400 * "0", "learning-rate: expected a number"),
     ("count = [3]", "a whole number, got [3]"), ("name = {a = 1}", "expected a text in quotes")],
)  # fmt: skip
def test_what_is_refused(read, text, part):
    with pytest.raises(InvalidArgument, match=r"x\.toml: .*" + re.escape(part)) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["count = ", "count = 3\ncount = 4", "a b", b"name = '\xff'", "name = 'x"])
def test_what_is_no_toml(read, text):
    with pytest.raises(FormatError, match=r"x\.toml: not a TOML file"):
        read(text)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.toml"):
        read_options(tmp_path / "none.toml", ROWS)


@pytest.mark.parametrize(
    "value",
    [0, -5, 2**62, True, False, 0.1, 1e-5, 1e22, 5e-324, 0.0003000000142492354, math.inf, "", "x", 'a"b\\c', "tab\tnew\nline",
     "\x00\x1f\x7f", "\N{GREEK SMALL LETTER PHI}\U0001f600", "train_*.bin", "[a]", ["a", 'b"'], []],
)  # fmt: skip
def test_what_is_written_is_read(value):
    back = tomllib.loads(f"x = {toml_of(value)}")["x"]
    assert back == value and type(back) is type(value)


def test_text_of_a_file(read):
    values = {"count": 3, "rate": 0.1, "name": "n", "flag": False, "no_plot": True, "words": ["x"], "letter": None}
    text = options_text(values, GROUPS, "Heading")
    assert text.splitlines() == [
        "# Heading", "", "# some", "count = 3", "learning-rate = 0.1", 'name = "n"', "", "# others", "flag = false", "no-plot = true",
        'words = ["x"]',
    ]  # fmt: skip
    assert read(text) == {name: value for name, value in values.items() if value is not None}
    assert options_text({}, GROUPS, "Heading") == "# Heading\n"


def test_a_name_in_no_encoding(read):
    """As of a file that os.fsdecode gave: TOML is Unicode."""
    text = options_text({"name": "bad\udcff", "count": 1}, GROUPS, "Heading")
    assert "# name is left out" in text and read(text) == {"count": 1}

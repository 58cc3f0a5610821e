"""Which tokenizer a model gets, and ids where there is none."""

import pytest

from pyllmc import tokenizer as tokenizers
from pyllmc import vocabulary
from pyllmc.errors import FormatError, InvalidArgument, Unavailable
from pyllmc.tokenizer import load_tokenizer
from pyllmc.tokenizer_file import write_tokenizer_file
from pyllmc.vocabulary import choose_vocabulary

BYTES = load_tokenizer("bytes")


@pytest.fixture
def no_gpt2(monkeypatch):
    def absent():
        raise Unavailable("the GPT-2 vocabulary could not be loaded")

    monkeypatch.setattr(tokenizers, "_cached_gpt2", absent)


def shown(vocab, ids, before=(), echo=False):
    decoder, text = vocab.decoder(before, echo)
    return text + "".join(map(decoder.push, ids))


@pytest.mark.parametrize("size", [256, 257])
def test_bytes_by_their_number(tmp_path, size):
    found, missing = choose_vocabulary("auto", size, tmp_path)
    assert (found.name, missing) == ("bytes", None)
    assert found.end == (256 if size == 257 else None)
    assert found.beginning() == ([256] if size == 257 else [10])
    assert found.encode(b"\xff\n", "x") == [255, 10]


@pytest.mark.parametrize("size", [60, 1000, 50257, 50304])
def test_ids_with_a_reason_where_there_is_no_tokenizer(tmp_path, no_gpt2, size):
    """TOK-03"""
    found, missing = choose_vocabulary("auto", size, tmp_path)
    assert found.name == "ids" and found.beginning() == [size - 1] and found.end is None
    assert ("could not be loaded" if size > 1000 else "--tokenizer names a file") in missing
    with pytest.raises(Unavailable):
        choose_vocabulary("gpt2", size, tmp_path)


@pytest.mark.parametrize("name", vocabulary.BESIDE)
def test_the_file_beside_the_weights_comes_first(tmp_path, monkeypatch, name):
    """TOK-07: whatever the working folder is."""
    write_tokenizer_file(tmp_path / name, [b"zero ", b"one ", b"end"], 2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found, missing = choose_vocabulary("auto", 3, tmp_path)
    assert missing is None and shown(found, [1, 0]) == "one zero " and found.end == 2
    assert choose_vocabulary("ids", 3, tmp_path)[0].name == "ids"
    assert choose_vocabulary("auto", 2, tmp_path)[0].name == "ids"  # 3 tokens: not those of this model
    named, _ = choose_vocabulary(str(tmp_path / name), 257, "/")
    assert shown(named, [0, 200]) == "zero <200>"
    (tmp_path / name).write_bytes(b"x" * 2000)
    with pytest.raises(FormatError, match=name):
        choose_vocabulary("auto", 3, tmp_path)


def test_gpt2_from_a_file(golden, no_gpt2):
    found, _ = choose_vocabulary("auto", 50304, golden)
    ids = found.encode("phi φ ∀ 🙂 🇯🇵 日本語".encode(), "x")
    assert shown(found, ids) == "phi φ ∀ 🙂 🇯🇵 日本語" and found.end == 50256
    assert shown(found, [464, 50300, 464]) == "The<50300>The"
    with pytest.raises(InvalidArgument, match="stdin: byte 1 is not UTF-8"):
        found.encode(b"a\xff", "stdin")


def test_a_prompt_may_end_within_a_character(tmp_path):
    found, _ = choose_vocabulary("bytes", 257, tmp_path)
    euro = "€".encode()
    assert shown(found, euro[1:], before=euro[:1]) == "€"
    assert shown(found, b"b", before=b"a", echo=True) == "ab"
    assert shown(found, b"b", before=b"a") == "b"


def test_ids_as_text(tmp_path):
    ids, _ = choose_vocabulary("ids", 60, tmp_path)
    assert ids.encode(b" 1 2,3\n059", "x") == [1, 2, 3, 59] and ids.encode(b"", "x") == []
    assert shown(ids, [4, 5], before=[1, 2]) == "4 5"
    assert shown(ids, [4, 5], before=[1, 2], echo=True) == "1 2 4 5"
    for wrong in (b"1 x", b"60", b"-1", "²".encode(), b"1.5", b"9" * 5000):
        with pytest.raises(InvalidArgument, match="the prompt: expected ids from 0 to 59, got"):
            ids.encode(wrong, "the prompt")


def test_byte_lengths_follow_bytes_and_not_text():
    """TOK-06: a single high byte is one, though as text it would be a mark of three."""
    raw = bytes(range(256)) + "φ🙂".encode()
    assert BYTES.byte_lengths()[BYTES.encode_bytes(raw)].sum() == len(raw)

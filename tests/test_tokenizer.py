"""Vocabularies, exact bytes, and streams without partial characters."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllmc.errors import FormatError, InvalidArgument, Unavailable
from pyllmc.formats import open_shard, read_tokenizer_file, write_tokenizer_file
from pyllmc.tokenizer import StreamDecoder, load_tokenizer

SAMPLES = [
    "phi φ",
    "∀x",
    "🙂",
    "🇯🇵",
    "日本語のテキスト",
    "naïve café",
    "a\n\n  b\t c's 12,345",
    "<|endoftext|>",
    "",
]
BYTES = load_tokenizer("bytes")
GPT2_MERGES = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"


@pytest.fixture(scope="module")
def gpt2(golden):
    return load_tokenizer(golden / "gpt2_tokenizer.bin")


def streamed(tokenizer, ids):
    decoder = StreamDecoder(tokenizer)
    parts = [decoder.push(token) for token in ids]
    assert not any("\ufffd" in part for part in parts)
    return "".join(parts) + decoder.finish()


@pytest.mark.parametrize("text", SAMPLES)
def test_gpt2_text_survives_whole_and_streamed(gpt2, text):
    """TOK-01"""
    ids = gpt2.encode(text)
    assert gpt2.decode(ids) == text == streamed(gpt2, ids)
    assert gpt2.eot not in ids


@settings(deadline=None)
@given(st.text())
def test_byte_text_survives_whole_and_streamed(text):
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # lone surrogates are no text
        return
    ids = BYTES.encode(text)
    assert ids.tolist() == list(raw)
    assert BYTES.decode(ids) == text
    assert "".join(map(StreamDecoder(BYTES).push, ids)) == text


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_stream_equals_decode_of_all_for_any_bytes(raw):
    decoder = StreamDecoder(BYTES)
    assert "".join(map(decoder.push, raw)) + decoder.finish() == BYTES.decode(list(raw))


def test_an_unfinished_character_shows_only_at_the_end():
    decoder = StreamDecoder(BYTES)
    assert decoder.push(0xE2) == decoder.push(0x88) == ""
    assert decoder.finish() == "\ufffd"


def test_byte_lengths_are_exact(gpt2):
    """TOK-06"""
    text = "".join(SAMPLES)
    assert gpt2.byte_lengths()[gpt2.encode(text)].sum() == len(text.encode())
    assert (BYTES.byte_lengths()[:256] == 1).all()
    singles = [token for token in range(gpt2.n_vocab) if len(gpt2.table[token]) == 1]
    assert sorted(gpt2.decode_bytes(singles)) == list(range(256))


def test_encoding_equals_the_reference_shards(gpt2, shakespeare):
    """The text is cut at empty lines, each piece begins with end-of-text, the first 32,768 tokens are val."""
    stored = []
    for split in ("val", "train"):
        with open_shard(shakespeare / f"tinyshakespeare_gpt2_{split}.bin") as shard:
            stored.append(shard.read(0, shard.tokens))
    pieces = (shakespeare / "tinyshakespeare.txt").read_text().split("\n\n")
    ids = [gpt2.encode(piece + "\n\n") for piece in pieces[:-1]] + [gpt2.encode(pieces[-1])]
    mine = np.concatenate([part for piece in ids for part in ([gpt2.eot], piece)])
    np.testing.assert_array_equal(mine, np.concatenate(stored))


def test_ids_outside_the_vocabulary():
    for bad in (257, -1):
        with pytest.raises(InvalidArgument, match=f"token id {bad} is outside the bytes vocabulary of 257"):
            BYTES.decode([65, bad])


def test_tokenizer_file_round_trip(golden, tmp_path):
    table, eot = read_tokenizer_file(golden / "gpt2_tokenizer.bin")
    assert (len(table), eot, table[eot]) == (50257, 50256, b"<|endoftext|>")
    write_tokenizer_file(tmp_path / "t.bin", table, eot)
    assert (tmp_path / "t.bin").read_bytes() == (golden / "gpt2_tokenizer.bin").read_bytes()


def test_damaged_tokenizer_files(tmp_path):
    path = tmp_path / "t.bin"
    write_tokenizer_file(path, BYTES.table, 256)
    raw = path.read_bytes()
    assert load_tokenizer(path).table == BYTES.table
    for change, text in (
        (raw[:-1], "ends within token 256 of 257"),
        (raw[:1025], "ends within token 0"),
        (raw[:1024], "ends within token 0"),
        (raw + b"x", "1 bytes follow the last of 257"),
        (raw[:12] + (257).to_bytes(4, "little") + raw[16:], "end-of-text id 257"),
        (raw[:8] + bytes(4) + raw[12:], "0 tokens"),
        (raw[:4] + b"\x01" + raw[5:], "version 1 .* lacks the end-of-text id"),
    ):
        path.write_bytes(change)
        with pytest.raises(FormatError, match=text):
            load_tokenizer(path)
    with pytest.raises(InvalidArgument, match="token 0 has 256 bytes"):
        write_tokenizer_file(tmp_path / "u.bin", [b"x" * 256], 0)


def test_a_vocabulary_without_all_bytes_only_decodes(tmp_path):
    write_tokenizer_file(tmp_path / "t.bin", [b"a", b"b", b"<|endoftext|>"], 2)
    tokenizer = load_tokenizer(tmp_path / "t.bin")
    assert tokenizer.decode([0, 1]) == "ab"
    with pytest.raises(Unavailable, match="can only decode"):
        tokenizer.encode("ab")


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(InvalidArgument, match="unknown tokenizer 'gpt-2': did you mean 'gpt2'"):
        load_tokenizer("gpt-2")
    with pytest.raises(FileNotFoundError, match="absent.bin"):
        load_tokenizer(tmp_path / "absent.bin")


@pytest.mark.parametrize("cached", [False, True])
def test_no_vocabulary_and_no_network_is_one_sentence(tmp_path, cached):
    """TOK-03: a proxy that refuses connections stands for the missing network; what is cached is damaged."""
    if cached:
        cached_as = hashlib.sha1(GPT2_MERGES.encode()).hexdigest()  # tiktoken's way of naming it
        (tmp_path / cached_as).write_bytes(b"half of a vocabulary")
    code = "from pyllmc.tokenizer import load_tokenizer; load_tokenizer('gpt2')"
    proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    nowhere = dict.fromkeys(proxies, "http://127.0.0.1:9")
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ
        | nowhere
        | {"TIKTOKEN_CACHE_DIR": str(tmp_path), "NO_PROXY": "", "no_proxy": ""}
        | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("pyllmc.errors.Unavailable: the GPT-2 vocabulary could not be loaded")
    assert "TIKTOKEN_CACHE_DIR" in last and "gpt2_tokenizer.bin" in last


def test_the_byte_vocabulary_is_an_encoding_of_257_tokens():
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.encoding.n_vocab == 257
    assert tokenizer.encoding.eot_token == tokenizer.eot == 256
    text = "naïve φ∀ 🤗\n  two  spaces, 3.14 it's <|endoftext|>"
    raw = text.encode()
    assert tokenizer.encode(text).tolist() == tokenizer.encode_bytes(raw).tolist() == list(raw)
    assert tokenizer.encoding.encode("<|endoftext|>", allowed_special="all") == [256]

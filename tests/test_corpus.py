"""Data preparation: what is written, what is held out, what is reused."""

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllmc import corpus, pieces
from pyllmc.cache import cache_folder
from pyllmc.corpus import prepare, unigram_entropy
from pyllmc.errors import InvalidArgument, Unavailable
from pyllmc.formats import find_shards, open_shard
from pyllmc.loader import TokenLoader
from pyllmc.tokenizer import load_tokenizer


def stream(pattern):
    tokens = []
    for path in find_shards(pattern):
        with open_shard(path) as shard:
            tokens.append(shard.read(0, shard.tokens))
    return np.concatenate(tokens)


def documents(tokens, eot=256):
    """The byte strings between end-of-text tokens."""
    starts = np.flatnonzero(tokens == eot)
    return [bytes(part[1:].astype(np.uint8)) for part in np.split(tokens, starts[1:])]


def test_help_topics_are_split_between_train_and_val(tmp_path):
    topics = pytest.importorskip("pydoc_data.topics").topics
    made = prepare(folder=tmp_path)
    train, val = documents(stream(made.train)), documents(stream(made.val))
    assert sorted(train + val) == sorted(text.encode() for text in topics.values())
    assert 0.08 < sum(map(len, val)) / sum(map(len, train + val)) <= 0.1
    assert (made.n_vocab, made.eot, made.reused) == (257, 256, False)
    assert (made.train_tokens, made.val_tokens) == (stream(made.train).size, stream(made.val).size)
    assert TokenLoader(made.val, 4, 64, vocab=made.n_vocab).num_batches > 10


def test_the_end_of_a_single_file_is_held_out(tmp_path):
    text = tmp_path / "story.txt"
    text.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    made = prepare(text, folder=tmp_path)
    (train,), (val,) = documents(stream(made.train)), documents(stream(made.val))
    assert train + val == text.read_bytes()
    assert val.startswith(b"line") and 0.08 < len(val) / len(train + val) <= 0.1
    assert Path(made.train).name == "story_train_*.bin"


def test_a_cut_never_falls_inside_a_character(tmp_path):
    text = tmp_path / "a.txt"
    for length in range(20, 60):
        text.write_text("é語🙂" * length, encoding="utf-8")
        made = prepare(text, folder=tmp_path, val_fraction=0.3)
        for pattern in (made.train, made.val):
            documents(stream(pattern))[0].decode()


def test_many_files_by_pattern_or_list(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_bytes(b"%02d" % number * 50)
    made = prepare(str(tmp_path / "*.txt"), folder=tmp_path / "cache")
    assert len(documents(stream(made.val))) == 3
    assert len(documents(stream(made.train))) == 27
    listed = prepare(sorted(tmp_path.glob("*.txt")), folder=tmp_path / "cache")
    assert listed.reused and listed.train == made.train


def test_a_document_longer_than_a_shard_spills_over(tmp_path):
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(97, 123)) * 2)
    made = prepare(text, folder=tmp_path, shard_tokens=10, val_fraction=0.05)
    assert len(find_shards(made.train)) == 6
    np.testing.assert_array_equal(stream(made.train), [256, *text.read_bytes()[:50]])


def test_binary_text_needs_the_byte_tokenizer(tmp_path, golden):
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 500 + b"\xff" + b"y" * 500)
    made = prepare(path, folder=tmp_path)
    assert documents(stream(made.train))[0] == path.read_bytes()[:901]
    with pytest.raises(InvalidArgument, match=r"a.bin: byte 500 is not UTF-8 text.*\"bytes\""):
        prepare(path, load_tokenizer(golden / "gpt2_tokenizer.bin"), tmp_path)


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_prepared_data_is_reused_until_anything_changes(tmp_path):
    text = tmp_path / "a.txt"
    text.write_bytes(b"some words\n" * 300)
    cache = tmp_path / "cache"
    first = prepare(text, folder=cache)
    before = snapshot(cache)
    assert prepare(text, folder=cache).reused
    assert snapshot(cache) == before
    others = [prepare(text, folder=cache, val_fraction=0.2), prepare(text, folder=cache, shard_tokens=1000)]
    text.write_bytes(b"some wards\n" * 300)
    others.append(prepare(text, folder=cache))
    assert not any(other.reused for other in others)
    assert len({first.train, *(other.train for other in others)}) == 4


@pytest.mark.parametrize("damage", ["no manifest", "shard cut", "shard gone", "manifest cut", "other key"])
def test_half_made_data_is_made_again(damage, tmp_path):
    text = tmp_path / "a.txt"
    text.write_bytes(b"some words\n" * 300)
    made = prepare(text, folder=tmp_path)
    whole = stream(made.train)
    shard = find_shards(made.train)[0]
    manifest = shard.parent / corpus.MANIFEST
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "shard cut":
        shard.write_bytes(shard.read_bytes()[:-10])
    elif damage == "shard gone":
        shard.unlink()
    elif damage == "manifest cut":
        manifest.write_bytes(manifest.read_bytes()[:20])
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"key": "0"}))
    again = prepare(text, folder=tmp_path)
    assert not again.reused
    np.testing.assert_array_equal(stream(again.train), whole)
    assert prepare(text, folder=tmp_path).reused


def test_an_interrupted_run_is_not_taken_for_done(tmp_path, monkeypatch):
    text = tmp_path / "a.txt"
    text.write_bytes(b"some words\n" * 300)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus.ShardWriter, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(text, folder=tmp_path)
    assert not prepare(text, folder=tmp_path).reused


def test_runs_at_the_same_time(tmp_path):
    text = tmp_path / "a.txt"
    text.write_bytes(b"some words\n" * 3000)
    results, start = [], threading.Barrier(4)

    def run():
        start.wait()
        results.append(prepare(text, folder=tmp_path, shard_tokens=2000))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len({made.train for made in results}) == 1
    train = documents(stream(results[0].train))[0]
    assert text.read_bytes().startswith(train) and len(train) >= 29700
    assert not list(tmp_path.rglob(".*.tmp"))


def test_unusable_sources(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InvalidArgument, match="nothing is left for the train"):
        prepare(tmp_path / "empty.txt", folder=tmp_path)
    with pytest.raises(InvalidArgument, match=r"no text file matches .*\*.md"):
        prepare(str(tmp_path / "*.md"), folder=tmp_path)
    with pytest.raises(InvalidArgument, match="is a folder"):
        prepare(tmp_path, folder=tmp_path)
    for options in ({"val_fraction": 0}, {"val_fraction": 1.0}, {"shard_tokens": 0}):
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            prepare(tmp_path / "empty.txt", folder=tmp_path, **options)


def test_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PYLLMC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pyllmc"
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="cannot make the folder .* set PYLLMC_CACHE"):
        prepare()


def test_pieces_encode_like_the_whole(golden, monkeypatch):
    """Seams must not change GPT-2's tokens, whatever white space and letters surround them."""
    tokenizer = load_tokenizer(golden / "gpt2_tokenizer.bin")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 3)

    @settings(deadline=None)
    @given(st.text(alphabet="ab'st \n\t1.é\u2028\u00a0🙂", max_size=80))
    def check(text):
        raw = text.encode()
        parts = list(pieces.pieces(raw, 0, len(raw)))
        assert b"".join(raw[piece] for piece in parts) == raw
        ids = [tokenizer.encode_bytes(raw[piece]).tolist() for piece in parts]
        assert sum(ids, []) == tokenizer.encode(text).tolist()

    check()
    text = b"a\nb\n\nc\nd " * 20
    assert len(list(pieces.pieces(text, 0, len(text)))) > 20  # the check above did cut


def test_unigram_entropy():
    assert unigram_entropy([3, 3, 3]) == 0
    assert unigram_entropy(np.arange(8)) == pytest.approx(math.log(8))
    assert unigram_entropy([0, 0, 1]) == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    with pytest.raises(InvalidArgument, match="no tokens"):
        unigram_entropy([])

"""python -m pyllmc.data prepare: which tokens, in which files, whatever the input and the number of processes."""

import json
import os
import re
import shlex
import sys

import numpy as np
import pytest

from pyllmc.checkpoint import peek_checkpoint
from pyllmc.data import inputs, preparation, prepare
from pyllmc.data.__main__ import COMMANDS, main, parser_of
from pyllmc.data.options import groups_of
from pyllmc.errors import FormatError, InvalidArgument, StateError, Unavailable
from pyllmc.formats import find_shards, open_shard, write_shard
from pyllmc.loader import TokenLoader
from pyllmc.tokenizer import Tokenizer, load_tokenizer
from pyllmc.train import main as train_main

BYTES = {"tokenizer": "bytes", "val": 0}


def stream(pattern):
    """All tokens of the shards, in order."""
    parts = []
    for path in find_shards(pattern):
        with open_shard(path) as shard:
            parts.append(shard.read(0, shard.tokens))
    return np.concatenate(parts)


def documents(tokens, eot=256):
    """The byte strings after each end-of-text token of the vocabulary "bytes"."""
    assert tokens[0] == eot
    return [bytes(part[1:].astype(np.uint8)) for part in np.split(tokens, np.flatnonzero(tokens == eot)[1:])]


def texts(made, split="train"):
    return documents(stream(made.patterns()[split]))


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def files_of(folder):
    """{name: bytes} of the shards; nothing else but the state may be there."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = [name for name in found if not re.fullmatch(r"\w+_(train|val)_\d{6}\.bin", name)]
    assert len(others) == 1 and others[0].endswith(".prepare.json"), others
    del found[others[0]]
    return found


def call(capsys, *argv):
    """(exit status, stdout, stderr) of the command, in this process."""
    try:
        status = main([str(word) for word in argv])
    except SystemExit as ended:  # argparse
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


# -- the reference ---------------------------------------------------------------------------------


def test_tiny_shakespeare_is_the_reference_file_byte_for_byte(golden, shakespeare, tmp_path, capsys):
    """llm.c's own preparation made these shards of the same text."""
    text = golden.parent / "data" / "tinyshakespeare.txt"
    status, out, err = call(
        capsys, "tinyshakespeare", text, "-o", tmp_path, "--tokenizer", golden / "gpt2_tokenizer.bin", "--processes", 1
    )
    assert (status, err) == (0, "") and "305,260 tokens" in out
    made = files_of(tmp_path)
    assert made["tinyshakespeare_train_000001.bin"] == (shakespeare / "tinyshakespeare_gpt2_train.bin").read_bytes()
    assert made["tinyshakespeare_val_000000.bin"] == (shakespeare / "tinyshakespeare_gpt2_val.bin").read_bytes()


# -- documents of each kind of input ---------------------------------------------------------------


def test_a_text_file_is_one_document(tmp_path):
    """TOK-06: bytes of the tokens add up to the file, whichever bytes it has."""
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(256)) * 3 + "φ∀🤗".encode())
    made = prepare(path, tmp_path / "o", **BYTES)
    assert texts(made) == [path.read_bytes()] and made.documents == 1
    tokens = stream(made.patterns()["train"])
    lengths = load_tokenizer("bytes").byte_lengths()
    assert lengths[tokens[tokens != made.eot]].sum() == path.stat().st_size


def test_token_bytes_add_up_for_gpt2(tmp_path, golden, monkeypatch):
    """TOK-06, and seams: text encoded in many ranges gives the tokens of the whole."""
    text = "φ∀ naïve 🤗\n\n  two  spaces\nit's 3.14\r\n" * 400 + "日本語 🇯🇵"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    monkeypatch.setattr(inputs, "RANGE_BYTES", 100)
    tokenizer = load_tokenizer(golden / "gpt2_tokenizer.bin")
    made = prepare(path, tmp_path / "o", tokenizer=tokenizer, val=0)
    tokens = stream(made.patterns()["train"])
    assert tokens.tolist() == [made.eot, *tokenizer.encode(text)]
    assert tokenizer.byte_lengths()[tokens[1:]].sum() == path.stat().st_size
    assert len(list(inputs.ranges(*[inputs.find_sources([path])[0]]))) > 20


@pytest.mark.parametrize(
    ("mark", "text", "expected"),
    [
        ("<|end|>", "a\n<|end|>\nb b\n<|end|>\n\n<|end|>", [b"a", b"b b"]),
        ("<|end|>", "a<|end|>b", [b"a", b"b"]),
        ("\n\n", "a\n\nb\nc\n\n\n\nd", [b"a\n\n", b"b\nc\n\n", b"d"]),
        ("\n", "a\nb\n", [b"a\n", b"b\n"]),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_separator(tmp_path, monkeypatch, mark, text, expected, size):
    monkeypatch.setattr(inputs, "RANGE_BYTES", size)
    (tmp_path / "a.txt").write_text(text)
    assert texts(prepare(tmp_path / "a.txt", tmp_path / "o", separator=mark, **BYTES)) == expected


def test_jsonl(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "RANGE_BYTES", 20)
    path = tmp_path / "a.jsonl"
    rows = [{"text": "first"}, {"text": "", "id": 2}, {"id": 3, "text": "naïve\nφ"}, {"text": "last"}]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, rows[:2])).encode() + b"\n\n  \n"
                     + "\n".join(json.dumps(row, ensure_ascii=False) for row in rows[2:]).encode())  # fmt: skip
    made = prepare(path, tmp_path / "o", **BYTES)
    assert texts(made) == [b"first", "naïve\nφ".encode(), b"last"]
    assert (made.documents, made.empty, made.bad) == (3, 1, 0)
    jsonl(path, [{"body": "x"}])
    assert texts(prepare(path, tmp_path / "p", text_field="body", **BYTES)) == [b"x"]


BAD_LINES = [
    (b'{"text": "half', "not JSON: "), (b"[1]", "expected a JSON object, got list"), (b'{"txt": "a"}', "no field 'text', it has 'txt'"),
    (b"{}", "it has none"), (b'{"text": 3}', "is int, expected text"), (b'{"text": null}', "is NoneType"),
    (b'{"text": "\xff"}', "not UTF-8 from byte 10"), (b'{"text": "\\ud800"}', "lone surrogate"), (b"[" * 100000, "not JSON: "),
]  # fmt: skip


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=range(len(BAD_LINES)))
@pytest.mark.parametrize("size", [1, 10**6])
def test_a_bad_line_is_named_or_counted(tmp_path, monkeypatch, line, reason, size):
    monkeypatch.setattr(inputs, "RANGE_BYTES", size)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n{"text": "b"}\n' + line + b'\n{"text": "c"}\n' + line)
    with pytest.raises(FormatError, match=r"a\.jsonl: line 4: .*" + re.escape(reason)):
        prepare(path, tmp_path / "o", **BYTES)
    assert not (tmp_path / "o").exists()
    made = prepare(path, tmp_path / "o", skip_bad=True, **BYTES)
    assert texts(made) == [b"a", b"b", b"c"] and made.bad == 2


def test_text_that_is_no_utf8(tmp_path, golden):
    tokenizer = load_tokenizer(golden / "gpt2_tokenizer.bin")
    (tmp_path / "a.txt").write_bytes(b"ab|c\xffd|e")
    with pytest.raises(InvalidArgument, match=r"a\.txt: byte 4 is not UTF-8"):
        prepare(tmp_path / "a.txt", tmp_path / "o", tokenizer=tokenizer)
    with pytest.raises(FormatError, match=r"a\.txt: byte 3: not UTF-8"):
        prepare(tmp_path / "a.txt", tmp_path / "o", tokenizer=tokenizer, separator="|")
    made = prepare(tmp_path / "a.txt", tmp_path / "o", tokenizer=tokenizer, separator="|", skip_bad=True, val=0)
    assert (made.documents, made.bad) == (2, 1)


@pytest.fixture
def parquet(tmp_path):
    """A function that writes a Parquet file of several row groups."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow (extra: parquet) is not installed")
    from pyarrow.parquet import write_table

    def write(rows, name="a.parquet", field="text"):
        write_table(pyarrow.table({"id": range(len(rows)), field: rows}), tmp_path / name, row_group_size=3)
        return tmp_path / name

    return write


def test_parquet(tmp_path, parquet):
    rows = [f"page {number} φ" for number in range(10)]
    made = prepare(parquet(rows), tmp_path / "o", **BYTES)
    assert texts(made) == [row.encode() for row in rows]
    with pytest.raises(InvalidArgument, match=r"a\.parquet: no column 'body', it has id, text"):
        prepare(tmp_path / "a.parquet", tmp_path / "p", text_field="body", **BYTES)
    parquet(rows[:4] + [None] + rows[4:] + [""])
    with pytest.raises(FormatError, match=r"a\.parquet: row 5: column 'text' is NoneType"):
        prepare(tmp_path / "a.parquet", tmp_path / "p", **BYTES)
    made = prepare(tmp_path / "a.parquet", tmp_path / "p", skip_bad=True, processes=2, **BYTES)
    assert (texts(made), made.bad, made.empty) == ([row.encode() for row in rows], 1, 1)
    raw = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FormatError, match=r"a\.parquet: not a whole Parquet file"):
        prepare(tmp_path / "a.parquet", tmp_path / "q", **BYTES)


def test_parquet_without_pyarrow_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    status, out, err = call(capsys, "prepare", tmp_path / "a.parquet", "-o", tmp_path / "o", "--tokenizer", "bytes")
    assert (status, out) == (2, "") and "needs the package pyarrow: pip install pyarrow" in err and err.count("\n") == 1


def test_a_folder(tmp_path):
    folder = tmp_path / "in"
    (folder / "deep" / ".git").mkdir(parents=True)
    (folder / "b.txt").write_text("two")
    (folder / "deep" / "c.md").write_text("three")
    (folder / "deep" / ".git" / "x.txt").write_text("hidden")
    (folder / "photo.png").write_text("other")
    (folder / "empty.txt").touch()
    jsonl(folder / "a.jsonl", [{"text": "one"}])
    made = prepare(folder, tmp_path / "o", **BYTES)
    assert texts(made) == [b"one", b"two", b"three"]
    assert (made.left_out, made.empty) == (1, 1) and "in_train_000001.bin" in made.counts["train"]


# -- shards ----------------------------------------------------------------------------------------


def test_a_document_longer_than_a_shard_spills_over(tmp_path):
    """DAT-11: shards of 10 tokens, one document of 50."""
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(97, 123)) * 2)
    made = prepare(path, tmp_path / "o", shard_size=10, **BYTES)
    assert stream(made.patterns()["train"]).tolist() == [256, *path.read_bytes()]
    counts = list(made.counts["train"].values())
    assert len(counts) == 6 and counts[:4] == [10] * 4 and max(counts) == 10 and sum(counts) == 53
    assert list(made.counts["train"])[0] == "a_train_000001.bin"


def test_samples_and_one_token_too_few(tmp_path):
    """DAT-06 and DAT-04 on files made here."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (3 * 64 - 1 + 128))  # and the end-of-text token
    made = prepare(path, tmp_path / "o", tokenizer="bytes", val_tokens=128)
    assert TokenLoader(made.patterns()["train"], 1, 64).num_batches == 2
    with pytest.raises(InvalidArgument, match="have 128 tokens, need 129"):
        TokenLoader(made.patterns()["val"], 16, 8)


def test_a_small_shard_is_told(tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"x" * 9000)
    status, out, _ = call(capsys, "prepare", tmp_path / "a.txt", "-o", tmp_path / "o", "--tokenizer", "bytes", "--val-tokens", 128)
    assert status == 0 and "note: val has 128 tokens, so that B x T may be 127 at most" in out and "note: train" not in out


def test_ids_above_16_bits_are_refused(tmp_path):
    """DAT-14: the vocabulary tells before anything is encoded."""
    (tmp_path / "a.txt").write_text("a")
    large = Tokenizer("large", [b"%d" % number for number in range(70001)], 0)
    with pytest.raises(InvalidArgument, match="large has 70001 ids, a shard holds ids up to 65535"):
        prepare(tmp_path / "a.txt", tmp_path / "o", tokenizer=large)
    assert not (tmp_path / "o").exists()


# -- what is held out ------------------------------------------------------------------------------


def test_whole_documents_are_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "RANGE_BYTES", 50)
    rows = [f"document {number:04d}" for number in range(500)]
    made = prepare(jsonl(tmp_path / "a.jsonl", [{"text": row} for row in rows]), tmp_path / "o", tokenizer="bytes", val=0.05)
    val = texts(made, "val")
    assert len(val) == 25 and sorted(texts(made) + val) == [row.encode() for row in rows]


def test_the_end_of_few_texts_is_held_out(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(b"".join(b"%s %d\n" % (name.encode(), number) for number in range(1000)))
    made = prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "o", tokenizer="bytes")
    for (train, val), name in zip(zip(texts(made), texts(made, "val"), strict=True), "ab", strict=True):
        assert train + val == (tmp_path / f"{name}.txt").read_bytes() and 0.08 < len(val) / len(train + val) <= 0.1


def test_an_empty_file_holds_nothing_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"words\n" * 100)
    (tmp_path / "b.txt").touch()
    made = prepare(tmp_path, tmp_path / "o", tokenizer="bytes", name="x")
    (train,), (val,) = texts(made), texts(made, "val")
    assert train + val == b"words\n" * 100 and len(val) == 54 and (made.documents, made.empty) == (1, 1)


def test_whole_text_files_are_held_out_where_there_are_enough(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_bytes(b"%02d" % number * 50)
    jsonl(tmp_path / "z.jsonl", [{"text": "z" * 100}])
    made = prepare(tmp_path, tmp_path / "o", tokenizer="bytes")
    assert len(texts(made, "val")) == 3 and len(texts(made)) == 28


def test_the_first_tokens_are_held_out(tmp_path):
    rows = [{"text": "x" * 9}] * 10
    path = jsonl(tmp_path / "a.jsonl", rows)
    made = prepare(path, tmp_path / "o", tokenizer="bytes", val_tokens=25, shard_size=20)
    assert list(made.counts["val"]) == ["a_val_000000.bin", "a_val_000001.bin"] and made.tokens("val") == 25
    both = [stream(made.patterns()[split]) for split in ("val", "train")]
    assert documents(np.concatenate(both)) == [b"x" * 9] * 10
    with pytest.raises(InvalidArgument, match="nothing is left to train on: all 100 tokens"):
        prepare(path, tmp_path / "p", tokenizer="bytes", val_tokens=100)
    with pytest.raises(InvalidArgument, match="too few documents"):
        prepare(jsonl(path, rows[:1]), tmp_path / "p", tokenizer="bytes")
    assert not (tmp_path / "p").exists()


# -- going on --------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder of all kinds in many ranges, and how to prepare it."""
    monkeypatch.setattr(inputs, "RANGE_BYTES", 100)
    folder = tmp_path / "corpus"
    folder.mkdir()
    jsonl(folder / "a.jsonl", [{"text": f"json {number} " * (number % 7)} for number in range(200)])
    for number in range(5):
        (folder / f"t{number}.txt").write_text("".join(f"line {line}\n" for line in range(40 * number)))
    return folder, {"tokenizer": "bytes", "val": 0.2, "shard_size": 700}


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("step", [1, 3, 10])
@pytest.mark.parametrize("every_s", [0.0, 1e9], ids=["each range", "each shard"])
def test_an_interrupted_preparation_goes_on(corpus, tmp_path, monkeypatch, step, every_s):
    folder, settings = corpus
    prepare(folder, tmp_path / "whole", **settings)
    whole = files_of(tmp_path / "whole")
    assert len(whole) > 10
    monkeypatch.setattr(preparation, "SAVE_EVERY_S", every_s)
    take, attempts, begun = preparation.Job._take, 0, []

    def limited(self, part, encoded):
        if len(begun) == attempts * step:
            raise Interrupted
        begun.append(part)
        take(self, part, encoded)

    monkeypatch.setattr(preparation.Job, "_take", limited)
    made = None
    while made is None:
        attempts += 1
        assert attempts < 1000
        begun.clear()
        try:
            made = prepare(folder, tmp_path / "o", **settings)
        except Interrupted:
            for path in (tmp_path / "o").glob("*.bin"):
                assert whole[path.name] == path.read_bytes()
    assert attempts > 3 and files_of(tmp_path / "o") == whole
    assert prepare(folder, tmp_path / "o", **settings).reused


def test_bytes_do_not_depend_on_the_number_of_processes(corpus, tmp_path):
    folder, settings = corpus
    made = [prepare(folder, tmp_path / str(n), processes=n, **settings) for n in (1, 2, 3)]
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2") == files_of(tmp_path / "3")
    assert made[0].documents == made[1].documents and made[0].empty == made[2].empty > 0


def test_changed_input_or_settings_are_told(corpus, tmp_path, capsys):
    folder, settings = corpus
    words = ["prepare", folder, "-o", tmp_path / "o", "--tokenizer", "bytes", "--val", 0.2, "--processes", 1]
    assert call(capsys, *words, "--shard-size", 700)[0] == 0
    status, out, _ = call(capsys, *words, "--shard-size", 700)
    assert status == 0 and "all of it was there already" in out
    before = files_of(tmp_path / "o")
    status, out, err = call(capsys, *words, "--shard-size", 800)
    assert (status, out) == (2, "") and "--shard-size 700, not 800: start anew with --force" in err
    (folder / "t3.txt").write_text("other")
    status, out, err = call(capsys, *words, "--shard-size", 700)
    assert status == 2 and re.search(r"another content of .*t3\.txt \(\d+ bytes, now 5\): start anew with --force", err)
    (folder / "t3.txt").unlink()
    assert "input that included" in call(capsys, *words, "--shard-size", 700)[2]
    assert files_of(tmp_path / "o") == before
    status, out, err = call(capsys, *words, "--shard-size", "1k", "--force")
    assert (status, err) == (0, "") and 0 < len(files_of(tmp_path / "o")) < len(before)


def test_bad_input_that_was_mended_needs_no_force(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {}])
    with pytest.raises(FormatError):
        prepare(path, tmp_path / "o", **BYTES)
    assert texts(prepare(jsonl(path, [{"text": "b"}]), tmp_path / "o", **BYTES)) == [b"b"]


def test_a_bad_line_late_costs_nothing(corpus, tmp_path):
    """What was made before it stays; leaving it out is a way to go on."""
    folder, settings = corpus
    with open(folder / "z.jsonl", "w") as file:
        file.write("{}\n" + '{"text": "last"}\n')
    with pytest.raises(FormatError, match=r"z\.jsonl: line 1: no field 'text'"):
        prepare(folder, tmp_path / "o", **settings)
    first = tmp_path / "o" / "corpus_train_000001.bin"
    before = first.stat().st_mtime_ns
    made = prepare(folder, tmp_path / "o", skip_bad=True, **settings)
    assert made.bad == 1 and first.stat().st_mtime_ns == before
    prepare(folder, tmp_path / "p", skip_bad=True, **settings)
    assert files_of(tmp_path / "o") == files_of(tmp_path / "p")
    with pytest.raises(InvalidArgument, match="1 document of corpus left out with --skip-bad"):
        prepare(folder, tmp_path / "o", **settings)


@pytest.mark.parametrize("damage", ["cut", "gone", "state", "foreign"])
def test_damaged_shards_are_not_taken_for_done(corpus, tmp_path, damage):
    folder, settings = corpus
    prepare(folder, tmp_path / "o", **settings)
    shard, state = tmp_path / "o" / "corpus_train_000003.bin", tmp_path / "o" / "corpus.prepare.json"
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-2])
    elif damage == "gone":
        shard.unlink()
    elif damage == "state":
        state.write_bytes(state.read_bytes()[:-9])
    else:
        state.unlink()
    with pytest.raises(InvalidArgument, match="--force"):
        prepare(folder, tmp_path / "o", **settings)
    assert not prepare(folder, tmp_path / "o", force=True, **settings).reused


def test_input_that_changes_meanwhile(corpus, tmp_path):
    folder, settings = corpus

    def touch(done, total):
        os.utime(folder / "a.jsonl", (1, 1))

    with pytest.raises(InvalidArgument, match=r"a\.jsonl was changed while it was read"):
        prepare(folder, tmp_path / "o", progress=touch, **settings)


def test_two_at_the_same_time(corpus, tmp_path):
    folder, settings = corpus

    def another(done, total):
        prepare(folder, tmp_path / "o", **settings)

    with pytest.raises(StateError, match="another preparation is at work"):
        prepare(folder, tmp_path / "o", progress=another, **settings)


def test_progress_counts_bytes(corpus, tmp_path):
    folder, settings = corpus
    seen = []
    prepare(folder, tmp_path / "o", progress=lambda done, total: seen.append((done, total)), **settings)
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert seen[0] == (0, total) and seen[-1] == (total, total) and seen == sorted(seen) and len(seen) > 20


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("prepare none.txt --tokenizer bytes", "none.txt: no such file or folder"),
            ("prepare", "required: IN"), ("prepaer a", "did you mean 'prepare'"),
        ("prepare a.txt --shard-size 0", "expected a number of tokens such as 5000 or 100M, got '0'"),
        ("prepare a.txt --shard-size 3G", "a shard counts at most"), ("prepare a.txt --shard-size ten", "got 'ten'"),
        ("prepare a.txt --val 1", "fraction from 0 to less than 1"), ("prepare a.txt --val x", "fraction"),
        ("prepare a.txt --val 0.1 --val-tokens 5", "exclude each other"), ("prepare a.txt --vall 1", "did you mean '--val'"),
        ("prepare a.txt --tokenizer gpt-2", "did you mean 'gpt2'"), ("prepare a.txt --separator= --tokenizer bytes", "separates"),
        ("prepare a.txt a.txt --tokenizer bytes", "named twice"), ("prepare a.gz --tokenizer bytes", "unpack it first"),
        ("prepare a.txt --tokenizer bytes", "too few documents"),
        ("prepare bare --tokenizer bytes", "no file in this folder ends in .txt"),
        ("prepare empty.txt --tokenizer bytes", "no text in there"), ("prepare a.txt --tokenizer bytes --name a/b", "--name 'a/b'"),
        ("prepare a.txt --tokenizer bytes -o a.txt", "-o a.txt: a file, expected a folder"), ("prepare a.txt --processes -1", "expected"),
        ("prepare a.txt --tokenizer a.txt", "a.txt: 1 bytes, too short"), ("tinystories", "nothing is downloaded: get TinyStories"),
        ("fineweb", "HuggingFaceFW/fineweb"), ("prepare tinyshakespeare --tokenizer bytes", "get input.txt from https://"),
        ("hellaswag", "hellaswag_val.jsonl from https://"), ("prepare s.dat --tokenizer bytes", "s.dat: a token shard and no text"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(tmp_path, capsys, monkeypatch, words, part):
    """DAT-17, too: what isn't here is never loaded from elsewhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.gz").write_text("a")
    write_shard(tmp_path / "s.dat", [1, 2])
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bare").mkdir()
    before = sorted(tmp_path.rglob("*"))
    status, out, err = call(capsys, *words.split())
    assert status == 2 and out == "" and part in err and err.count("\n") == 1, err
    assert sorted(tmp_path.rglob("*")) == before


def test_no_vocabulary_and_no_network(tmp_path, capsys, monkeypatch):
    """TOK-03: told before anything is made; the vocabulary "bytes" needs neither."""

    def refuse():
        raise Unavailable("the GPT-2 vocabulary could not be loaded")

    monkeypatch.setattr("pyllmc.tokenizer._cached_gpt2", refuse)
    (tmp_path / "a.txt").write_text("a b\n" * 100)
    status, out, err = call(capsys, "prepare", tmp_path / "a.txt", "-o", tmp_path / "o")
    assert (status, out) == (2, "") and "vocabulary could not be loaded" in err and not (tmp_path / "o").exists()
    assert call(capsys, "prepare", tmp_path / "a.txt", "-o", tmp_path / "o", "--tokenizer", "bytes")[0] == 0


def test_the_command_to_train_finds_the_shards(tmp_path, capsys, monkeypatch):
    """And trains on them as what they are: bytes took the room and the time of GPT-2's vocabulary."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "it's [new]"
    (tmp_path / "my story.txt").write_text("some words\n" * 100)
    status, out, err = call(capsys, "prepare", tmp_path / "my story.txt", "-o", folder, "--tokenizer", "bytes")
    assert (status, err) == (0, "")
    words = shlex.split(out.splitlines()[-1])
    assert words[1:4] == ["python", "-m", "pyllmc.train"] and words[4::2] == ["-i", "-j", "--tokenizer"]
    assert [path.name for pattern in words[5:9:2] for path in find_shards(pattern)] == [
        "my_story_train_000001.bin", "my_story_val_000000.bin",
    ]  # fmt: skip
    small = "-x 1 --layers 1 --channels 16 -b 1 -t 8 -v 0 -s 0 --device cpu --no-plot -o run".split()
    assert train_main([*words[4:], *small]) == 0
    assert peek_checkpoint("run/model_00000001.bin")[0].vocab == 257


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_table(command, capsys):
    """CLI-05: every flag of the table is in the help with its default, and is accepted."""
    status, text, err = call(capsys, command, "--help")
    assert (status, err) == (0, "")
    text = re.sub(r"\s+", " ", text)
    good = {"shard_size": "5k", "val": "0.5", "val_tokens": "7", "processes": "2", "tokens": "9", "separator": "\\n\\n"}
    for row in (row for rows in groups_of(command).values() for row in rows):
        assert re.sub(r"\s+", " ", row.help_text().replace("%%", "%")) in text, row
        for flag in row.flags.split():
            given = ["FILE", flag] if row.switch else ["FILE", flag, good.get(row.name, "word")]
            assert flag in text and row.name in parser_of(command).read(given).given


def test_lists(capsys):
    status, out, _ = call(capsys, "list")
    assert status == 0 and all(name in out for name in ("tinyshakespeare", "tinystories", "fineweb", "hellaswag"))
    for line in out.splitlines():
        if line.startswith("  run:  python -m pyllmc.data "):
            words = line.split()[4:]
            assert parser_of(words[0]).read(words[1:]).inputs == words[1:]
    assert call(capsys)[0] == 2 and call(capsys, "--help")[0] == 0


def test_defaults_of_a_set_give_way(tmp_path, capsys):
    text = tmp_path / "x.txt"
    text.write_text("".join(f"story {number}\n<|endoftext|>\n" for number in range(200)))
    words = ["tinystories", text, "-o", tmp_path, "--tokenizer", "bytes"]
    assert call(capsys, *words, "--val", 0.5)[0] == 0
    counts = json.loads((tmp_path / "tinystories.prepare.json").read_text())["progress"]["counts"]
    train, val = (sum(counts[split].values()) for split in ("train", "val"))
    assert 0.45 < val / (train + val) <= 0.5
    assert documents(stream(str(tmp_path / "tinystories_train_*.bin")))[0] == b"story 0"

"""HellaSwag's JSONL to the evaluation file, and what inspect says about files of each kind."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_data_prepare import call, jsonl
from test_multiple_choice import EXAMPLES, written

from pyllmc.errors import InvalidArgument, Unavailable
from pyllmc.formats import Example, read_multiple_choice, write_multiple_choice, write_shard, write_tokenizer_file
from pyllmc.tokenizer import load_tokenizer

MICRO = Path(__file__).parent / "golden" / "micro"
ROWS = [
    {"ind": 24, "activity_label": "Roof shingle removal", "ctx_a": "A man is sitting on a roof.", "ctx_b": "he",
     "ctx": "A man is sitting on a roof. he", "split": "val", "label": 3,
     "endings": ["is using wrap.", "is ripping level tiles off.", "is holding a cube.", "starts pulling up roofing."]},
    {"ctx": "naïve φ", "endings": ["a", "bb", "ccc", "dddd"], "label": "0"},
]  # fmt: skip


def test_the_public_jsonl(tmp_path, golden, capsys):
    path = jsonl(tmp_path / "hellaswag_val.jsonl", ROWS)
    tokenizer = load_tokenizer(golden / "gpt2_tokenizer.bin")
    status, out, err = call(capsys, "hellaswag", path, "--tokenizer", golden / "gpt2_tokenizer.bin")
    assert (status, err) == (0, "") and out == f"2 examples: {tmp_path / 'hellaswag_val.bin'}\n"
    read = read_multiple_choice(tmp_path / "hellaswag_val.bin", vocab=50257)
    for example, row in zip(read, ROWS, strict=True):
        assert example.label == int(row["label"])
        assert tokenizer.decode(example.context) == row["ctx"]
        assert [tokenizer.decode(run) for run in example.completions] == [" " + ending for ending in row["endings"]]
        assert example.completions[0].tolist() == tokenizer.encode(" " + row["endings"][0]).tolist()


def test_writing_gives_the_bytes_of_the_format(tmp_path):
    """Against a file put together by hand from its description."""
    by_hand = written(tmp_path / "hand.bin").read_bytes()
    examples = [Example(9, label, np.array(context), tuple(map(np.array, runs))) for label, context, runs in EXAMPLES]
    write_multiple_choice(tmp_path / "made.bin", examples)
    assert (tmp_path / "made.bin").read_bytes() == by_hand


@pytest.mark.parametrize(
    ("example", "text"),
    [
        (Example(0, 4, [1], ([1], [2], [3], [4])), "example 1: label 4 with 4 completions"),
        (Example(0, 0, [], ([1],)), "context has no token"), (Example(0, 0, [1], ([1], [])), "completion 1 has no token"),
        (Example(0, 0, [1], ([1, 70000],)), "completion 0 has id 70000"), (Example(0, 0, [-1], ([1],)), "context has id"),
        (Example(0, 0, [1] * 32760, ([1],)), "65536 bytes long, the format allows 65535"),
    ],
)  # fmt: skip
def test_what_the_format_can_not_hold_writes_nothing(tmp_path, example, text):
    """DAT-14 for evaluations."""
    with pytest.raises(InvalidArgument, match=text):
        write_multiple_choice(tmp_path / "a.bin", [Example(0, 0, [1], ([1],)), example])
    assert not list(tmp_path.iterdir())
    write_multiple_choice(tmp_path / "a.bin", [Example(0, 0, [1] * 32759, ([1],))])
    assert len(read_multiple_choice(tmp_path / "a.bin")[0].context) == 32759


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"label": None}, "label: expected a number from 0 to 3, got None"), ({"label": 4}, "got 4"), ({"label": True}, "got True"),
        ({"label": ""}, "got ''"), ({"label": -1}, "got -1"), ({"endings": ["a"] * 3}, "endings: expected 4 texts"),
        ({"endings": "abcd"}, "expected 4 texts"), ({"endings": ["a", "b", "c", 4]}, "expected 4 texts"),
        ({"ctx": ""}, "ctx: expected text"), ({"ctx": "\ud800"}, "lone surrogate"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_or_counted(tmp_path, capsys, change, reason):
    path = jsonl(tmp_path / "a.jsonl", [*ROWS, ROWS[0] | change])
    (tmp_path / "a.bin").write_bytes(b"old")
    words = ["hellaswag", path, "--tokenizer", "bytes"]
    status, out, err = call(capsys, *words)
    assert (status, out) == (2, "") and "a.jsonl: line 3: " in err and reason in err and err.count("\n") == 1
    assert (tmp_path / "a.bin").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    status, out, _ = call(capsys, *words, "--skip-bad", "-o", tmp_path / "b.bin")
    assert status == 0 and out.startswith("2 examples, 1 line left out") and len(read_multiple_choice(tmp_path / "b.bin")) == 2


def test_other_files_are_refused(tmp_path, capsys):
    unlabelled = [{key: value for key, value in ROWS[0].items() if key != "label"}]
    for rows, text in ((unlabelled, "test file has no labels"), ([], "no example in there"), ([[1]], "expected a JSON object")):
        status, out, err = call(capsys, "hellaswag", jsonl(tmp_path / "a.jsonl", rows), "--tokenizer", "bytes")
        assert (status, out) == (2, "") and text in err and err.count("\n") == 1
    jsonl(tmp_path / "a.jsonl", ROWS)
    for words, text in (
        (["none.jsonl"], "get hellaswag_val.jsonl from"), ([tmp_path / "a.jsonl"] * 2, "one JSONL file makes one evaluation, got 2"),
        ([tmp_path / "a.jsonl", "-o", tmp_path], "a folder, expected a file"),
        ([tmp_path / "a.jsonl", "-o", tmp_path / "a.jsonl"], "that is the input"),
        ([tmp_path / "a.jsonl", "-o", tmp_path / "x" / "a.bin"], "there is no such folder"),
    ):
        status, out, err = call(capsys, "hellaswag", *words, "--tokenizer", "bytes")
        assert (status, out) == (2, "") and text in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# -- inspect ---------------------------------------------------------------------------------------


def rows_of(out):
    return dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines() if "  " in line)


def test_inspect_a_shard(tmp_path, capsys):
    text = "φ and\x1b[2J more"
    write_shard(tmp_path / "a.bin", [256, *text.encode(), 256, *b"second"])
    status, out, err = call(capsys, "inspect", tmp_path / "a.bin", "--tokens", 15)
    rows = rows_of(out)
    assert (status, err) == (0, "") and rows["header"] == f"20240520 1 {len(text.encode()) + 8}"
    assert rows["tokens"] == str(len(text.encode()) + 8) and rows["documents"].startswith("2 begin here")
    assert rows["text"].startswith(f"{len(text.encode()) + 6} bytes, 1.00 a token (bytes)")
    assert rows["first ids"].startswith("256 207 134 32 97") and len(rows["first ids"].split()) == 15
    assert rows["first text"].startswith("'<|endoftext|>φ and\\x1b[2J") and "\x1b" not in out


def test_inspect_agrees_with_what_was_prepared(tmp_path, golden, capsys):
    """TOK-06: bytes of text, from token counts alone."""
    (tmp_path / "a.txt").write_text("naïve φ∀ 🤗 words\n" * 500, encoding="utf-8")
    words = ["--tokenizer", golden / "gpt2_tokenizer.bin"]
    assert call(capsys, "prepare", tmp_path / "a.txt", "-o", tmp_path, "--val", 0, "--processes", 1, *words)[0] == 0
    rows = rows_of(call(capsys, "inspect", tmp_path / "a_train_000001.bin", *words)[1])
    assert rows["text"].startswith(f"{(tmp_path / 'a.txt').stat().st_size:,} bytes, ")
    assert rows["documents"].startswith("1 begin") and "naïve φ∀ 🤗 words" in rows["first text"]


def test_inspect_without_a_vocabulary_shows_ids(tmp_path, capsys, monkeypatch):
    """TOK-03: and says why there is no text."""

    def refuse():
        raise Unavailable("the GPT-2 vocabulary could not be loaded")

    monkeypatch.setattr("pyllmc.tokenizer._cached_gpt2", refuse)
    write_shard(tmp_path / "a.bin", [50256, 1000, 2])
    write_shard(tmp_path / "b.bin", [60000])
    write_shard(tmp_path / "c.bin", [])
    status, out, _ = call(capsys, "inspect", tmp_path / "a.bin")
    assert status == 0 and rows_of(out)["first ids"] == "50256 1000 2" and "could not be loaded" in rows_of(out)["no text"]
    assert "no known vocabulary has an id 60000" in call(capsys, "inspect", tmp_path / "b.bin")[1]
    assert "bytes has 257 ids, the file holds 60000" in call(capsys, "inspect", tmp_path / "b.bin", "--tokenizer", "bytes")[1]
    assert rows_of(call(capsys, "inspect", tmp_path / "c.bin")[1])["tokens"] == "0"


def test_inspect_an_evaluation(tmp_path, capsys):
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    assert call(capsys, "hellaswag", path, "--tokenizer", "bytes")[0] == 0
    status, out, _ = call(capsys, "inspect", tmp_path / "a.bin")
    rows = rows_of(out)
    assert status == 0 and rows["examples"] == "2" and rows["context"] == repr(ROWS[0]["ctx"])
    assert rows["ending 3"] == "' starts pulling up roofing.' (right)" and rows["ending 0"] == "' is using wrap.'"


def test_inspect_the_other_kinds(tmp_path, capsys):
    write_tokenizer_file(tmp_path / "t.bin", [b"a", b"\xffb", b"<end>"], 2)
    status, out, err = call(capsys, "inspect", tmp_path / "t.bin", MICRO / "micro_fp32.bin", MICRO / "micro_debug_state.bin")
    assert (status, err) == (0, "")
    assert "3, end-of-text is 2" in out and "8 in all tokens, the longest has 5" in out
    assert "model checkpoint" in out and "as fp32" in out and "debug state" in out
    raw = np.fromfile(MICRO / "micro_fp32.bin", "<i4", 8)
    assert f"{raw[4]} layers, {raw[5]} heads, {raw[6]} channels, vocabulary {raw[3]}, context {raw[2]}" in out


def test_inspect_a_state(golden, capsys):
    status, out, _ = call(capsys, "inspect", golden / "mid_state_00000010_00000.bin")
    assert status == 0 and "step 10" in out and "world 1" in out


def test_inspect_damage(tmp_path, capsys):
    write_shard(tmp_path / "a.bin", [1, 2, 3])
    raw = (tmp_path / "a.bin").read_bytes()
    other = json.dumps(ROWS).encode()
    for change, text in ((raw[:-1], "truncated"), (raw[:100], "too short"), (b"", "none of llm.c"), (other, "none of llm.c")):
        (tmp_path / "a.bin").write_bytes(change)
        status, out, err = call(capsys, "inspect", tmp_path / "a.bin")
        assert (status, out) == (2, "") and text in err and err.count("\n") == 1, err
    status, out, err = call(capsys, "inspect", tmp_path / "none.bin")
    assert status == 2 and "none.bin" in err and err.count("\n") == 1

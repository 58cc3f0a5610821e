"""python -m pyllmc.profile: what it writes and prints, bad input, drawing again."""

import json
import os
import re
import sys

import numpy as np
import pytest

from pyllmc import GPT2, GPT2Config
from pyllmc.cli import Parser
from pyllmc.profile import __main__ as profile
from pyllmc.profile import ceilings, document, report
from pyllmc.profile.options import BESIDE_DRAW, ENGINE_FIELDS, GROUPS

TINY = "--layers 2 --heads 1 --channels 16 --vocab 50 -b 2 -t 16 -x 2 --warmup 1 --device cpu".split()
FILES = ["floor.png", "memory.png", "profile.json", "roofline.png", "timeline.html", "timeline.png", "trace.json"]
BEST = {"copy_tb_s": 0.02, "product_tflops": 0.01, "how": "made up"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working folder with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def measured(monkeypatch):
    """Ceilings that take no time to measure; the list of arithmetic they were measured in."""
    asked = []

    def measure(library, ordinal, threads, arithmetic):
        asked.append(arithmetic)
        return BEST

    monkeypatch.setattr(ceilings, "measure", measure)
    return asked


def call(capsys, *argv):
    """(exit status, stdout, stderr) of the command, in this process."""
    try:
        status = profile.main([str(word) for word in argv])
    except SystemExit as ended:  # argparse
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_profile_writes_what_it_says(here, capsys, measured):
    status, out, err = call(capsys, *TINY, "--ceilings", "-o", "p")
    assert (status, err) == (0, "") and measured == ["fp32"]
    assert sorted(os.listdir("p")) == FILES
    for name in FILES:
        assert name in out.splitlines()[-1]
    for part in ("L2C16, B = 2, T = 16, fp32", "copy 20 GB/s, product 10 GFLOP/s", "lanes of the recorded step", "beside compute", "gaps ",
                 "attention bwd", "% compute", "% memory", "parameters", "-r 1 "):  # fmt: skip
        assert part in out, out
    found = json.loads((here / "p" / "profile.json").read_text())
    assert found["format"] == "pyllmc profile" and found["version"] == 1
    assert found["conditions"]["backend"] == "cpu" and found["conditions"]["libraries"] and found["conditions"]["command"]
    assert found["workload"]["config"] == {"layers": 2, "heads": 1, "channels": 16, "vocab": 50, "context": 16}
    assert found["step"]["count"] == 2 and found["step"]["low"] <= found["step"]["ms"] <= found["step"]["high"]
    assert {row["op"] for row in found["ops"]} == {span["name"] for span in found["spans"]}
    assert all(row["low"] <= row["ms"] <= row["high"] for row in found["ops"])
    assert found["kernels"] is None and found["notes"] == []
    assert [plan["total"] for plan in found["memory"]["plans"]] == sorted((p["total"] for p in found["memory"]["plans"]), reverse=True)
    for name in FILES:
        if name.endswith(".png"):
            assert (here / "p" / name).read_bytes().startswith(b"\x89PNG")


def test_ceilings_are_kept_and_asked_for_where_there_are_none(here, capsys, measured):
    status, out, _ = call(capsys, *TINY, "-o", "a")
    assert status == 0 and "not measured for this device: --ceilings does it, once" in out and measured == []
    assert "floor.png" not in os.listdir("a")
    assert call(capsys, *TINY, "--ceilings", "-o", "b")[0] == 0
    status, out, _ = call(capsys, *TINY, "-o", "c")
    assert status == 0 and "copy 20 GB/s" in out and len(measured) == 1


def test_options_reach_the_model(here, capsys):
    status, _, err = call(capsys, *TINY, "-d", 96, "-r", 2, "--head-chunks", 3, "-o", "p")
    assert status == 0, err
    found = json.loads((here / "p" / "profile.json").read_text())
    assert found["workload"]["micro_steps"] == 3 and found["memory"]["recompute"] == 2
    calls = {row["op"]: row["calls"] for row in found["ops"]}
    assert calls["gelu again"] == calls["norm 1 again"] == calls["qkv"] == 6 and calls["logits"] == 9 and calls["adamw"] == 1


def test_a_checkpoint(here, capsys):
    with GPT2.from_config(GPT2Config(layers=1, heads=1, channels=16, vocab=50, context=24), batch=1, seq_len=8, device="cpu") as model:
        model.save("model.bin")
    status, out, err = call(capsys, "-e", "model.bin", "-b", 1, "-x", 1, "--warmup", 0, "--device", "cpu")
    assert status == 0, err
    assert "model, B = 1, T = 24" in out and re.search(r"written to profiles/\d{8}-\d{6}-model: ", out)


def test_kernels_of_a_cpu_are_spans_and_said_so(here, capsys):
    status, out, err = call(capsys, *TINY, "--kernels", "-o", "p")
    assert (status, err) == (0, "") and "note: the CPU engine runs no kernels; times are those of spans" in out


def test_json_is_all_that_is_printed(here, capsys):
    status, out, err = call(capsys, *TINY, "--json", "-o", "p")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads((here / "p" / "profile.json").read_text())


def test_drawing_again_gives_the_same(here, capsys, measured):
    assert call(capsys, *TINY, "--ceilings", "-o", "p")[0] == 0
    status, out, err = call(capsys, "--draw", "p/profile.json", "-o", "again")
    assert (status, err) == (0, "") and "attention bwd" in out
    assert sorted(os.listdir("again")) == [name for name in FILES if name != "profile.json"]
    for name in ("trace.json", "timeline.html", "memory.png", "roofline.png"):
        assert (here / "again" / name).read_bytes() == (here / "p" / name).read_bytes(), name
    assert call(capsys, "--draw", "p/profile.json")[0] == 0 and sorted(os.listdir("p")) == FILES


@pytest.mark.parametrize(
    "words, part",
    [
        (["-x", 0], "-x must be at least 1, got 0"), (["--warmup", -1], "--warmup must be at least 0, got -1"),
        (["-b", 0], "-b must be at least 1, got 0"), (["-t", 0], "-t must be at least 1, got 0"),
        (["-d", 33], "total_tokens 33 is no multiple of 32"), (["-e", "d13"], "unknown model descriptor 'd13'"),
        (["-e", "gone.bin"], "gone.bin"),
        (["-t", 32, "--context", 16], "rows of 32 (-t) don't fit the model, whose longest sequence is 16"),
        (["-o", "file"], "-o file: "), (["-o", "file/below"], "is a file, expected a folder"),
        (["--draw", "gone.json"], "has no meaning beside it"), (["--kernel"], "did you mean '--kernels'"),
        (["--heads", 3], "must be divisible by heads"), (["--recompute", 7], "recompute"), (["--precision", "bf17"], "bf16"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing(here, capsys, words, part):
    (here / "file").write_text("")
    status, out, err = call(capsys, *TINY, *words)
    assert status == 2 and out == "" and part in err and err.count("\n") == 1, err
    assert sorted(os.listdir()) == ["file"]


NO_SPANS = {"format": "pyllmc profile", "version": 1, **dict.fromkeys(document.NEEDED, {}), "spans": [{"name": "a"}]}


@pytest.mark.parametrize(
    "text, part",
    [("{", "is no JSON"), ("[]", "is no profile"), ('{"format": "pyllmc profile", "version": 2}', "version 2"),
     ('{"format": "pyllmc profile", "version": 1}', "lacks conditions, workload"), (None, "no such file"),
     (json.dumps(NO_SPANS), "\"spans\" must hold")],
)  # fmt: skip
def test_a_file_that_is_no_profile(here, capsys, text, part):
    if text is not None:
        (here / "x.json").write_text(text)
    status, out, err = call(capsys, "--draw", "x.json", "-o", "p")
    assert status == 2 and out == "" and part in err and err.count("\n") == 1, err
    assert not (here / "p").exists()


def test_without_matplotlib_all_else_is_written(here, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "pyllmc.figures", "pyllmc.profile")) and "figure" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, out, err = call(capsys, *TINY, "-o", "p")
    assert status == 0 and "Traceback" not in err and "note: no pictures were drawn: " in out
    assert sorted(os.listdir("p")) == ["profile.json", "timeline.html", "trace.json"]


def test_interrupted(here, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(profile, "measure", stop)
    assert call(capsys, *TINY, "-o", "p") == (130, "", "\npyllmc.profile: interrupted; nothing was written\n")
    assert not (here / "p").exists()


def test_help_and_table_agree(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0 and "small run" not in out
    rows = [row for rows in GROUPS.values() for row in rows]
    for row in rows:
        assert all(re.search(rf"(^|[\s,]){re.escape(flag)}\b", out) for flag in row.flags.split()), row.flags
    names = {row.name for row in rows}
    assert len(names) == len(rows) and set(ENGINE_FIELDS) <= names and BESIDE_DRAW <= names
    args = Parser(GROUPS).read([])
    assert (args.steps, args.batch, args.seq_len, args.warmup, args.model) == (10, 4, 1024, None, None)


def test_tables_are_aligned():
    lines = report.lines(("caption", ("op", "ms", "for"), [("qkv", "1.000", "a word"), ("attention bwd", "12.5", "b")])).splitlines()
    assert lines == ["caption", "op                ms  for", "qkv            1.000  a word", "attention bwd   12.5  b"]


def test_json_has_no_nan(tmp_path):
    text = document.to_json({"a": [np.nan, 1.0], "b": {"c": float("inf")}, "d": (2,)})
    assert json.loads(text) == {"format": "pyllmc profile", "version": 1, "a": [None, 1.0], "b": {"c": None}, "d": [2]}

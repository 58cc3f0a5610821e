"""An llm.c trainer as a side: reading what it prints, running it, and every way in which that fails."""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from pyllmc.ab import command
from pyllmc.ab.reference import facts_of, last_words, read_output
from pyllmc.config import GPT2Config
from pyllmc.errors import FormatError
from pyllmc.gpt2 import GPT2

FAKE = Path(__file__).with_name("fake_trainer.py")
ROOT = FAKE.parents[1]
LOGS = {"d12_b4_bf16": (1, 40), "d12_b4_fp32": (1, 40), "mid_fp32": (1, 20), "mid_fp32_resume": (11, 20)}


def line(step, total, loss="9.5", ms="10.53", mfu="-100.0%"):
    return (
        f"step {step:4d}/{total} | loss {loss} (+nanz)| norm 6.1125 (+0.12z)| lr 9.00e-05 | {ms} ms | {mfu} bf16 MFU | 384163 tok/s"
    )


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOGS)
def test_real_output(golden, name):
    """All steps of the reference's own logs, against a reading of each line by cutting it up."""
    text = (golden / "logs" / f"{name}_stdout.log").read_text()
    first, last = LOGS[name]
    found = read_output(text)
    lines = [part.split("|") for part in text.splitlines() if part.startswith("step ")]
    assert found.steps == list(range(first, last + 1)) and found.total == last
    assert found.ms == [float(parts[4].split()[0]) for parts in lines]
    assert found.losses == [float(parts[1].split()[1]) for parts in lines]
    assert len(found.ms) == last - first + 1 and min(found.ms) > 0
    assert found.settings["micro batch size B"] == "4" and found.settings["device"] == "NVIDIA H200"


def test_real_figures(golden):
    found = read_output((golden / "logs" / "d12_b4_bf16_stdout.log").read_text())
    assert (found.ms[0], found.ms[1], found.ms[-1]) == (515.78, 10.53, 10.56)
    assert (found.losses[0], found.losses[-1]) == (10.979527, 6.064280)
    average = sum(found.ms[1:]) / 39  # what the trainer prints at its end, from unrounded times
    assert average == pytest.approx(10.565904, abs=0.005)
    facts = facts_of(found.settings)
    assert facts["precision"] == "bf16" and facts["master_weights"] == 1 and facts["gelu_fusion"] == 2
    assert (facts["weight_decay"], facts["learning_rate"], facts["parameters"]) == (0.1, 3e-4, 124475904)
    assert facts_of(read_output((golden / "logs" / "mid_fp32_stdout.log").read_text()).settings)["master_weights"] == 0


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_carriage_returns(ending):
    text = ending.join([line(1, 3), "evaluating HellaSwag: 10/79\revaluating HellaSwag: 20/79", line(2, 3), line(3, 3)])
    assert read_output(text).steps == [1, 2, 3]


@pytest.mark.parametrize("mfu", ["-100.0%", "48.3%", "n/a"])
def test_any_utilisation(mfu):
    assert read_output(line(1, 1, mfu=mfu)).ms == [10.53]


def test_a_sample_may_say_what_it_likes():
    text = "\n".join([line(1, 2), "generating:", "---", line(7, 9), "step 8/9 is", "---", line(2, 2), "step by step"])
    assert read_output(text).steps == [1, 2]


def test_losses_that_are_no_numbers_are_read_as_such():
    found = read_output("\n".join([line(1, 3, "    nan"), line(2, 3, "inf"), line(3, 3, "   -nan")]))  # as %7.6f pads
    assert str(found.losses) == "[nan, inf, nan]"


@pytest.mark.parametrize(
    "lines, part",
    [([], "no step was printed"), (["val loss 1.0"], "no step was printed"), ([line(1, 3), line(3, 3)], "missing or repeated"),
     ([line(1, 3), line(1, 3), line(2, 3)], "missing or repeated"), ([line(1, 3), line(2, 3)], "last step printed is 2 of 3"),
     ([line(1, 2), line(2, 3)], "missing or repeated"), ([line(1, 1, ms="0.00")], "too short"),
     ([line(1, 1, ms="nan")], "unknown form"), ([line(1, 1, loss="abc")], "unknown form"), ([line(1, 2), line(2, 2)[:60]], "unknown form"),
     (["step    1/20: train loss 5.0 (10 ms, 300 tok/s)"], "unknown form"), ([line(1, 1), "generating:", line(1, 1)], None)],
)  # fmt: skip
def test_what_can_not_be_read_is_an_error(lines, part):
    if part is None:  # a sample that never ends hides what follows, and hides no step that is missing
        assert read_output("\n".join(lines)).steps == [1]
        return
    with pytest.raises(FormatError, match=part):
        read_output("\n".join(lines))


def test_last_words():
    assert last_words("a\nError: no file\nmore\n") == "; it says 'Error: no file'"
    assert last_words("a\nb\n") == "; it says 'b'"
    assert last_words("HellaSwag eval not found at x\nb") == "; it says 'b'"
    assert last_words("") == "; it printed nothing"


# -- running ---------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "starts"))
    wrapper = tmp_path / "trainer"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    wrapper.chmod(0o755)
    config = GPT2Config(layers=1, heads=2, channels=16, vocab=300, context=16)
    with GPT2.from_config(config, batch=1, seq_len=16, device="cpu") as model:
        model.save("tiny.bin")
    return tmp_path


def call(capsys, *words, rounds=1, steps=4):
    given = ["-e", "tiny.bin", "-b", "2", "-t", "16", "--device", "cpu", "--rounds", str(rounds), "--steps", str(steps),
             "--b", "reference:./trainer", "-o", "out.json", "--no-plot", *words]  # fmt: skip
    try:
        status = command.main(given)
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def starts(folder):
    """[(process id, {flag: value})] of the trainer's starts."""
    rows = [row.split() for row in (folder / "starts").read_text().splitlines()]
    return [(int(row[0]), dict(zip(row[1::2], row[2::2], strict=True))) for row in rows]


@pytest.mark.parametrize("start", ["random tokens", "shards"])
def test_same_flags_tokens_and_weights_give_the_same_losses(here, capsys, start):
    """The stand-in really trains from what its flags name: only equal batches, order and weights give these losses."""
    words = []
    if start == "shards":
        import numpy as np

        from pyllmc.shards import write_shard

        for number in range(3):
            write_shard(here / f"t_{number}.bin", np.random.default_rng(number).integers(0, 300, 200))
        words = ["-i", "t_*.bin"]
    status, out, err = call(capsys, "--a", "lr=1e-3 weight_decay=0.1", *words, rounds=2)
    assert status == 0, err
    assert re.search(r"losses (agree|are equal), B against A", out) and "DIFFER" not in out
    result = json.loads((here / "out.json").read_text())
    (comparison,) = result["comparisons"]
    a, b = (dict(comparison["sides"][name]["losses"]) for name in "AB")
    assert sorted(b) == list(range(6)) and all(abs(a[i] - b[i]) < 1e-5 for i in b)
    assert abs(b[0] - b[5]) > 1e-3  # they moved: the rate was passed on
    assert comparison["losses"]["compared"] == 6 and comparison["differences"] == []
    assert [block["side"] for block in comparison["blocks"]].count("B") == 4 == len(starts(here))
    assert all(len(block["step_ms"]) == 4 for block in comparison["blocks"])


def test_flags_never_say_zero_where_that_divides(here, capsys):
    call(capsys, "--reference-args", "-r 2 -zz 0")
    (_, flags), *_ = starts(here)
    assert int(flags["-v"]) > 1000 and flags["-r"] == "2" and flags["-zz"] == "0"
    assert (flags["-b"], flags["-t"], flags["-d"], flags["-x"], flags["-k"]) == ("2", "16", "32", "6", "constant")
    assert "-o" not in flags


def test_a_faster_wrong_answer_is_not_faster(here, capsys, monkeypatch):
    monkeypatch.setenv("FAKE", "wrong")
    status, out, _ = call(capsys)
    assert status == 0
    assert re.search(r"LOSSES DIFFER, B against A: step 3 .*A faster wrong answer is not faster", out)
    assert out.index("LOSSES DIFFER") < out.index("verdict")  # above the timing
    monkeypatch.setenv("FAKE", "nan")
    assert "LOSSES DIFFER, B against A: step 4 gives A 5." in call(capsys)[1]


def test_settings_that_differ_are_told(here, capsys):
    out = call(capsys, "--reference-args", "-c 0.3")[1]
    assert "A and B differ in weight_decay (0, 0.3)" in out and "clocks: A, host clock" in out


@pytest.mark.parametrize(
    "fake, part",
    [("exit", "ended with exit status 3; it says \"Error: Failed to open file"), ("garbage", "a step's line of unknown form"),
     ("missing", "steps are missing or repeated: 1, 2, 3, 5, 6"), ("short", "the last step printed is 5 of 6"),
     ("killed", "was killed by SIGKILL"), ("silent", "no step was printed; it printed nothing"), ("zero", "too short"),
     ("other", "ran with batch 3, the other side has 2")],
)  # fmt: skip
def test_failures_are_one_sentence_and_nothing_is_written(here, capsys, monkeypatch, fake, part):
    monkeypatch.setenv("FAKE", fake)
    status, out, err = call(capsys)
    assert status == 2 and part in err and err.count("\n") == 1 and err.startswith("pyllmc.ab: "), err
    assert out == "" and not (here / "out.json").exists()


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_a_trainer_that_hangs_is_stopped(here, capsys, monkeypatch):
    monkeypatch.setenv("FAKE", "hang")
    status, _, err = call(capsys, "--timeout", "2")
    assert status == 2 and "did not end within 2 s" in err
    assert gone(starts(here)[0][0])


def test_interruption_stops_the_trainer(here, capsys, monkeypatch):
    monkeypatch.setenv("FAKE", "hang")

    def interrupt():
        deadline = time.monotonic() + 60
        while not (here / "starts").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    status, out, err = call(capsys)
    assert status == 130
    assert gone(starts(here)[0][0])


def test_binaries_that_are_none(here, capsys):
    for path, part in (("./none", "is no program"), ("./tiny.bin", "is no program"), (".", "is no program")):
        status, _, err = call(capsys, "--b", f"reference:{path}")
        assert status == 2 and part in err and err.count("\n") == 1
    (here / "odd").write_text("no program")
    (here / "odd").chmod(0o755)
    assert "can't be started" in call(capsys, "--b", "reference:./odd")[2]
    status, _, err = call(capsys, "--a", "reference:./trainer")
    assert status == 2 and "give the binary to --b" in err

"""python -m pyllmc.train: options, messages, exit status, what lies in the folder afterwards."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_native import run_python

from pyllmc import _find, train
from pyllmc.ab import command as ab
from pyllmc.callbacks import StepReport
from pyllmc.cli import Parser
from pyllmc.config import GPT2Config
from pyllmc.console import has_size, step_text
from pyllmc.data import __main__ as data
from pyllmc.errors import OutOfMemory
from pyllmc.gpt2 import GPT2
from pyllmc.monitor import GpuReading
from pyllmc.profile import __main__ as profile
from pyllmc.run_options import how_to_go_on
from pyllmc.rundir import find_latest_complete, read_json_log, read_main_log
from pyllmc.shards import write_shard
from pyllmc.train_options import GROUPS

TINY = "--layers 1 --heads 1 --channels 16 -b 2 -t 16 -x 4 -u 1 -v 2 -m 2 -s 4 -g 20 --device cpu".split()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder with a cache of its own and a text to train on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 40)
    return tmp_path


@pytest.fixture
def shards(here):
    tokens = np.random.default_rng(0).integers(0, 50, 600)
    write_shard(here / "t_0.bin", tokens[:300])
    write_shard(here / "t_1.bin", tokens[300:])
    write_shard(here / "v_0.bin", tokens[:100])
    return ["-i", "t_*.bin", "-j", "v_*.bin"]


def call(capsys, *argv):
    """(exit status, stdout, stderr) of the command, in this process."""
    try:
        status = train.main([str(word) for word in argv])
    except SystemExit as ended:  # argparse
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_run_leaves_what_it_says(here, capsys):
    status, out, err = call(capsys, "--data", "text.txt", *TINY)
    assert (status, err) == (0, "")
    (folder,) = (here / "runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "DONE_00000004", "extra_00000004.json", "log.jsonl", "main.log", "model_00000004.bin", "run.png",
        "run.toml", "state_00000004_00000.bin",
    ]  # fmt: skip
    for part in ("device ", "cpu: ", "memory", "unigram entropy", "step      4/4  loss", "validation loss",
                 "--- sample at step 4 ---", f"picture: runs/{folder.name}/run.png"):  # fmt: skip
        assert part in out, out
    assert (folder / "run.png").read_bytes().startswith(b"\x89PNG")
    log = read_main_log(folder / "main.log")
    assert [row[0] for row in log["trl"]] == [0, 1, 2, 3] and [row[0] for row in log["tel"]] == [0, 2, 4]
    for line in (folder / "log.jsonl").read_text().splitlines():
        assert json.loads(line)["kind"] in ("train", "val", "checkpoint")


def test_resume_goes_on_and_then_is_complete(here, capsys):
    options = ["--data", "text.txt", *TINY, "-o", "run", "--no-plot"]
    assert call(capsys, *options)[0] == 0
    status, _, err = call(capsys, *options)
    assert status == 2 and "run already holds a run" in err and "-y 1" in err
    status, out, _ = call(capsys, *options, "-y", 1)
    assert status == train.NOTHING_TO_DO == 3 and "already at step 4" in out
    status, out, _ = call(capsys, *options, "-y", 1, "-x", 6)
    assert status == 0 and "resumed from step 4" in out
    assert find_latest_complete("run").step == 6


def test_resume_as_another_model_is_refused(here, capsys):
    """The run goes on with its own model, so options that name another one are not passed over in silence."""
    options = ["--data", "text.txt", *TINY, "-o", "run", "--no-plot"]
    assert call(capsys, *options)[0] == 0
    first = "run/model_00000004.bin"
    for words, part in ((["--layers", 2], "layers 1, not 2"), (["--vocab", 300], "vocab 257, not 300"),
                        (["-e", "d12"], "vocab 257, not 50257|layers 1, not 12|channels 16, not 768")):  # fmt: skip
        status, _, err = call(capsys, *options, "-y", 1, "-x", 6, *words)
        assert status == 2 and re.search(f"the run in run has ({part})", err), err
    for model in (first, "gone.bin"):
        status, _, err = call(capsys, *options, "-y", 1, "-x", 6, "-e", model, "-t", 16)
        assert status in (0, 3), err


def test_shards_and_checkpoint(shards, capsys):
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50, context=16)
    with GPT2.from_config(config, batch=1, seq_len=16, device="cpu") as model:
        model.save("first.bin")
    status, out, err = call(capsys, *shards, "-e", "first.bin", "-b", 2, "-x", -1, "-d", 64, "-s", 0, "-o", "r")
    assert status == 0, err
    assert "16 channels, vocabulary 50" in out and "sample" not in out
    assert len(read_main_log("r/main.log")["trl"]) == 9  # floor(299 / 32) x 2 batches, two to an update


def test_samples_without_a_tokenizer_are_ids(shards, capsys):
    """CKP-01, TOK-03: training needs no tokenizer."""
    status, out, _ = call(capsys, *shards, *TINY, "--vocab", 50)
    assert status == 0 and "samples are shown as ids: no known tokenizer has 50 ids" in out
    assert re.search(r"--- sample at step 4 ---\n(\d+ ){19}\d+\n", out)


def test_seed_decides_everything(here, capsys):
    losses = []
    for number, seed in enumerate((1, 1, 2)):
        call(capsys, "--data", "text.txt", *TINY, "-o", f"r{number}", "--seed", seed, "--no-plot")
        losses.append([record["loss"] for record in read_json_log(f"r{number}/log.jsonl") if "loss" in record])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    "words, part",
    [("-v -1", "val_every"), ("-s -1", "sample_every"), ("-n -1", "checkpoint_every"), ("-x 0", "steps"),
     ("-nk -1", "keep must be"), ("-nm -1", "major_every must be"), ("-lg -1", "gpu_every must be"),
     ("-x -2", "steps"), ("-b 0", "B must be at least 1|batch"), ("-b -3", "batch"), ("-t 0", "T must be|seq_len|context"),
     ("-d 33", "use 32 or 64"), ("-d 0", "total_tokens"), ("-d 7", "use 32"), ("-k cosin", "did you mean 'cosine'"),
     ("-l nan", "rate"), ("-l fast", "expected a number, got 'fast'"), ("-b two", "a whole number, got 'two'"),
     ("-y 2", "expected 0 or 1"),
     ("-y 1", "-y 1 needs -o"), ("-q 2", "final_fraction"), ("-m 0", "val_batches"), ("-b 100", "too small for one batch"),
     ("--heads 3", "divisible"), ("--device gpu", "auto, cpu, cuda"), ("--tokenizer byts", "did you mean 'bytes'"),
     ("-e d13", "unknown model descriptor"), ("-e none.bin", "no such file"), ("-j v.bin", "-j needs -i"),
     ("-i none_*.bin", "no token shard matches|exclude"), ("--data none.txt", "no text file matches"),
     ("--bathc 3", "did you mean '--batch'"), ("--prefetch hots", "did you mean 'host'"), ("-c -1", "weight_decay"),
     ("--precision fp8", "fp32, bf16"), ("-u -1", "warmup"), ("--lag -1", "result_lag"), ("-r 7", "recompute"),
     ("-sl -1", "max_loss_z"), ("--seed -1", "seed"), ("-x", "expected one argument"), ("stray", "'stray': a pattern needs quotes"),
     ("--context 8", r"rows of 16 \(-t\) .* longest sequence is 8"), ("--tokenizer text.txt", "text.txt: not a tokenizer")],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(here, capsys, words, part):
    status, out, err = call(capsys, "--data", "text.txt", *TINY, *words.split())
    assert status == 2, (out, err)
    assert re.search(part, err) and re.fullmatch(r"pyllmc\.train: .+\n", err), err
    assert not list(here.glob("runs/*"))


@pytest.mark.parametrize("program, words, hint", [
    (train, "text.txt", "an option before it says what it is, such as --data FILE"), (train, "-x 3 text.txt", "a pattern needs quotes"),
    (ab, "run", "such as --a WORDS"), (profile, "run", "such as --model MODEL"), (data, "list x", "'x' (--help lists the options)"),
])  # fmt: skip
def test_a_word_without_an_option(here, capsys, program, words, hint):
    with pytest.raises(SystemExit) as ended:
        program.main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and hint in said.err and said.err.count("\n") == 1


def test_shards_for_text_and_text_for_shards(shards, here, capsys):
    """A shard's bytes would train, and mean nothing."""
    for words, part in ((["--data", "t_0.bin"], "t_0.bin: a token shard and no text: -i takes token shards"),
                        (["--data", "t_*.bin"], "t_0.bin: a token shard"),
                        (["-i", "text.txt"], "text.txt: not a token shard: .*; python -m pyllmc.data prepare makes them")):  # fmt: skip
        status, _, err = call(capsys, *words, *TINY)
        assert status == 2 and re.search(part, err) and err.count("\n") == 1, err
    assert not (here / "runs").exists()


def test_damaged_checkpoint_and_shard(shards, here, capsys):
    (here / "bad.bin").write_bytes(b"x" * 2000)
    for words in (["-e", "bad.bin"], ["-e", "t_0.bin"]):
        status, _, err = call(capsys, *shards, *words, "-b", 1, "-t", 8)
        assert status == 2 and err.count("\n") == 1 and words[1] in err
    status, _, err = call(capsys, *shards, *TINY, "--vocab", 20, "-o", "r")
    assert status == 2 and re.search(r"[tv]_\d.bin: token \d+ .* the model's vocabulary is 20", err)
    assert not list((here / "r").glob("*.bin"))


def test_validation_data_one_token_short(shards, here, capsys):
    """DAT-04, as a user meets it: before training, with what would do."""
    write_shard(here / "v_0.bin", np.zeros(2 * 16, np.uint16))
    status, _, err = call(capsys, *shards, *TINY, "--vocab", 50)
    assert status == 2 and "v_0.bin: too small for one batch: have 32 tokens, need 33" in err and err.count("\n") == 1
    assert not list(here.glob("runs/*"))


def test_odd_settings_are_noted(here, capsys):
    status, _, err = call(capsys, "--data", "text.txt", *TINY, "-u", 4, "--no-plot")
    assert status == 0 and err == "note: warm-up takes 4 of 4 steps: the learning rate never decays\n"


def test_zero_is_off(here, capsys):
    off = ["-v", 0, "-s", 0, "-n", 0, "-nk", 0, "-nm", 0, "-lg", 0, "-g", 0]
    status, out, _ = call(capsys, "--data", "text.txt", *TINY, *off, "-o", "r", "--no-plot")
    assert status == 0 and "validation" not in out and "sample at" not in out and "picture" not in out
    assert find_latest_complete("r").step == 4  # the end is always saved


# -- on a GPU, as far as it shows without one


def test_the_small_run_on_a_gpu(here, capsys, monkeypatch):
    """Which options it fills in, which it leaves; the arithmetic is small_run's."""
    monkeypatch.setattr(train, "on_gpu", lambda device: True)
    monkeypatch.setattr(train, "GPU_SHAPE", {"layers": 1, "heads": 1, "channels": 16})
    (here / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 400)
    words = "--data text.txt -t 64 -d 1024 -s 0 --device cpu --no-plot -o r --peak-tflops 1e-3".split()
    status, out, err = call(capsys, *words)
    assert status == 0, err
    assert "1 layers, 1 heads, 16 channels" in out and "1024 tokens each (1 x 16 x 64)" in out
    assert "rate    cosine, peak 0.001" in out
    steps = len(read_main_log("r/main.log")["trl"])
    epochs = float(re.search(r"([\d.]+) epochs", out)[1])
    assert steps >= 20 and epochs <= 17
    status, _, err = call(capsys, *words, "-o", "other", "-b", 0)
    assert status == 2 and "batch must be at least 1, got 0" in err


def test_utilisation_says_of_what(here, capsys):
    """CLI-13: the peak and its precision are stated; more than all of it is said to be odd."""
    options = ["--data", "text.txt", *TINY, "-s", 0, "-v", 0, "--no-plot"]
    status, out, _ = call(capsys, *options, "--peak-tflops", 50)
    assert status == 0 and re.search(r"MFU +against 50 TFLOP/s \(fp32, as given\), .* GFLOP a token by 6 N", out)
    assert re.search(r"step +4/4 .* MFU 0\.\d%\n", out)
    _, out, _ = call(capsys, *options, "--peak-tflops", 1e-9)
    assert re.search(r"MFU \d+\.\d% \(the stated peak is too low\)", out)
    _, out, _ = call(capsys, *options)
    assert "MFU" not in out
    for wrong in ("0", "-1", "nan", "inf"):
        status, _, err = call(capsys, *options, "--peak-tflops", wrong)
        assert status == 2 and "peak_tflops must be a number above 0" in err


def test_a_plan_that_does_not_fit(here, capsys, monkeypatch):
    """Status 2, and one sentence with needed, free and what would help; nothing is written."""
    real = GPT2.memory_plan

    def scarce(*args, **kwargs):
        plan = real(*args, **kwargs)
        plan.device_free = real(*args, **{**kwargs, "batch": 3}).total
        return plan

    def full(*args, **kwargs):
        raise OutOfMemory("llmc_model_create: device memory: needed more than there is")

    monkeypatch.setattr(GPT2, "memory_plan", scarce)
    monkeypatch.setattr(GPT2, "from_config", full)
    status, out, err = call(capsys, "--data", "text.txt", *TINY, "-b", 8)
    assert status == 2 and out.startswith("memory  ")
    assert re.fullmatch(
        r"pyllmc.train: out of memory: the model needs .* MiB, the device has .* MiB free; what would fit .*: "
        r"(-r \d \(.*\) or )?-b 3 \(.* MiB\)\n", err,
    )  # fmt: skip
    status, _, err = call(capsys, "--data", "text.txt", *TINY, "-b", 2)  # the plan fits: the engine's own words
    assert status == 2 and "needed more than there is" in err and err.count("\n") == 1
    assert not list(here.glob("runs/*"))


def test_gpu_readings_in_a_line():
    report = StepReport(0, 1.0, 1.0, 1e-3, 10.0, 1e5, 0.1, None, None)
    reading = GpuReading(650.5, None, 61)
    assert step_text(report, True, reading).endswith("tok/s  MFU n/a  650 W MHz n/a 61 \N{DEGREE SIGN}C")
    assert "MFU" not in step_text(report)


# -- the parser is the help (CLI-05)


def test_help_is_the_table(capsys):
    parser = Parser(GROUPS, prog="train")
    text = re.sub(r"\s+", " ", parser.format_help())
    rows = [row for group in GROUPS.values() for row in group]
    assert len({row.name for row in rows}) == len(rows)
    nothing = parser.read(["--device", "cpu"], train.kind_of_run)
    bigger = parser.read(["-e", "d12"], train.kind_of_run)
    for row in rows:
        for flag in row.flags.split():
            assert flag in text
            if not row.switch:
                value = {int: "3", float: "0.5", bool: "1"}.get(row.kind, "x")
                found = row.kind(value)
                assert getattr(parser.read([flag, value]), row.name) == ([found] if row.many else found)
        if row.name == "device":
            continue
        if row.switch:
            assert getattr(nothing, row.name) is False
            continue
        assert getattr(nothing, row.name) == (row.default if row.small is None else row.small)
        on_gpu = None if row.gpu_by else row.default if row.gpu is None else row.gpu
        assert getattr(parser.read([], lambda given: "gpu"), row.name) == on_gpu
        if row.name != "model":
            assert getattr(bigger, row.name) == row.default
        assert row.decided_by == "" or row.default is None
        assert not (row.gpu_by and row.gpu is not None)
    for default in ("default: 4; small run: 8", "default: 1024", "default: cosine", "default: 0)"):
        assert default in text


def test_every_flag_of_the_table_goes_somewhere():
    source = "".join((_find.PACKAGE / name).read_text() for name in ("train.py", "train_data.py", "train_options.py"))
    for row in (row for group in GROUPS.values() for row in group):
        assert f"args.{row.name}" in source or source.count(f'"{row.name}"') > 1, row.name


# -- from outside


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_interrupt_from_outside(here, capsys, signals):
    """CLI-10: status 130 soon, no traceback, nothing half-written, the folder can be resumed."""
    command = [sys.executable, "-m", "pyllmc.train", "--data", "text.txt", *TINY, "-x", "100000", "-n", "20",
               "-v", "0", "-s", "0", "-o", str(here / "a run")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(_find.CHECKOUT)}
    process = subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while find_latest_complete(here / "a run").step is None and time.monotonic() < deadline:
        time.sleep(0.02)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)
    sent = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5 and "Traceback" not in err
    if signals == (signal.SIGTERM,):
        assert process.returncode == -signal.SIGTERM
    else:  # a second one may come when Python has put the signal's own action back: a shell says 130 of both
        assert process.returncode in (130, -signal.SIGINT)[: len(signals)] and "interrupted" in err
    if len(signals) == 1 and signals[0] == signal.SIGINT:  # a second one may come while the first one's rests are removed
        assert not [name for name in os.listdir(here / "a run") if name.endswith(".tmp")]
    step = find_latest_complete(here / "a run").step
    assert step % 20 == 0
    go_on = [*command[3:], "-y", "1"]
    if "goes on from it" in err:  # what it says does so
        [(kept, advice)] = re.findall(r"; the checkpoint of step (\d+) is kept; (.*) goes on from it\n", err)
        assert int(kept) == step
        go_on = shlex.split(advice)
        assert go_on == ["--config", str(here / "a run/run.toml"), "-o", str(here / "a run"), "-y", "1"]
    else:
        assert signals != (signal.SIGINT,)
    status, out, _ = call(capsys, *go_on, "-x", step + 1)
    assert status == 0 and f"resumed from step {step}" in out


def test_runs_from_anywhere_without_a_display(here, tmp_path):
    """PLT-01, TOK-07: no display, a back end that needs one, a read-only working folder."""
    tmp_path.chmod(0o555)
    code = (
        "import sys; from pyllmc import train; status = train.main(sys.argv[1:]);"
        "assert 'matplotlib.pyplot' not in sys.modules; sys.exit(status)"
    )
    folder = tmp_path.parent / f"{tmp_path.name}-out"
    try:
        done = run_python(code, "--data", tmp_path / "text.txt", *TINY, "-o", folder, DISPLAY="",
                          MPLBACKEND="TkAgg", PYLLMC_CACHE=str(folder / "cache"))  # fmt: skip
    finally:
        tmp_path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert (folder / "run.png").exists()


def test_any_encoding_of_the_terminal_will_do(here):
    """A young model draws bytes that are no text; the mark for them isn't in every encoding."""
    code = "import sys; from pyllmc import train; sys.exit(train.main(sys.argv[1:]))"
    done = run_python(code, "--data", here / "text.txt", *TINY, "-s", 1, "-g", 60, "-o", here / "r", "--no-plot",
                      PYTHONIOENCODING="ascii", PYLLMC_CACHE=str(here / "cache"))  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout and "no sample" not in done.stdout


def test_a_reader_that_goes_away(here):
    """As in "| head -1": one sentence, no traceback, the status that a shell gives for SIGPIPE."""
    command = [sys.executable, "-m", "pyllmc.train", "--data", "text.txt", *TINY, "-x", "5000", "-o", "r"]
    process = subprocess.Popen(
        command, cwd=here, env={**os.environ, "PYTHONPATH": str(_find.CHECKOUT)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline().startswith("memory")
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (141, 1), err
    assert "nobody reads the output; no checkpoint was saved yet (-n N saves every N updates)\n" in err


def test_how_to_go_on_without_an_options_file(here):
    """As in a folder of llm.c's, before the first update there."""
    for name in ("DONE_00000003", "model_00000003.bin", "state_00000003_00000.bin"):
        (here / name).touch()
    assert how_to_go_on(here).startswith("no checkpoint was saved yet")  # not a whole one
    words = ["--data", "text.txt", *TINY, "-o", "r", "--no-plot"]
    assert train.main([str(word) for word in words]) == 0
    (here / "r/run.toml").unlink()
    assert how_to_go_on(Path("r")) == "the checkpoint of step 4 is kept; with the same options -o r -y 1 goes on from it"
    assert how_to_go_on(None).startswith("no checkpoint was saved yet")


def test_without_matplotlib_there_is_a_remark(here, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "pyllmc.figures", raising=False)
    monkeypatch.delattr("pyllmc.figures", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, _ = call(capsys, "--data", "text.txt", *TINY, "-o", "r")
    assert status == 0 and out.count("no picture was drawn") == 1
    assert find_latest_complete("r").step == 4


def test_missing_library(here, capsys, monkeypatch):
    monkeypatch.setenv("PYLLMC_LIBRARY", str(here / "absent.so"))
    status, _, err = call(capsys, "--data", "text.txt", *TINY[:-2])
    assert status == 2 and "absent.so" in err and err.count("\n") == 1


def test_a_bar_only_where_it_can_be_drawn(monkeypatch):
    """A pseudo-terminal of size 0, as automata offer, gets lines instead of nothing."""
    main, side = os.openpty()
    with os.fdopen(main, "rb"), os.fdopen(side, "w") as terminal:
        assert terminal.isatty() and not has_size(terminal)
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
        assert has_size(terminal)
    with open(os.devnull, "w") as nowhere:
        assert not has_size(nowhere)

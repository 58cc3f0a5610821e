"""python -m pyllmc.ab on the CPU engine: options, messages, exit status, what is measured and written."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pyllmc import _find, _native
from pyllmc.ab import command, conditions, measure, record, report
from pyllmc.ab.engine import Block, EngineSide
from pyllmc.ab.measure import Comparison, Measured
from pyllmc.ab.options import GROUPS
from pyllmc.ab.variants import parse_variant
from pyllmc.ab.workload import Workload
from pyllmc.cli import Parser
from pyllmc.config import GPT2Config
from pyllmc.errors import FormatError, OutOfMemory
from pyllmc.gpt2 import GPT2
from pyllmc.shards import write_shard

CONFIG = GPT2Config(layers=1, heads=2, channels=16, vocab=300, context=16)
TINY = "-e tiny.bin -b 2 -t 16 --device cpu --rounds 4 --steps 3 --warmup 2 --settle 1 -o out.json --no-plot".split()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with GPT2.from_config(CONFIG, batch=1, seq_len=16, device="cpu") as model:
        model.save("tiny.bin")
    return tmp_path


def call(capsys, *words):
    """(exit status, stdout, stderr) of the command, in this process."""
    try:
        status = command.main([*TINY, *map(str, words)])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def written(path="out.json"):
    return json.loads(Path(path).read_text())


# -- a run -----------------------------------------------------------------------------------------


def test_a_run_leaves_what_it_says(here, capsys):
    status, out, err = call(capsys, "--a", "threads=1", "--b", "recompute=1 threads=1", "--json")
    assert (status, err) == (0, "")
    for part in ("device ", "losses ", "threads=1", "ratio [95%]", "result: out.json", "A and B differ in recompute (0, 1)"):
        assert part in out, out
    result = written()
    assert (result["kind"], result["version"], result["complete"]) == (record.KIND, record.VERSION, True)
    (comparison,) = result["comparisons"]
    assert sorted(comparison["orders"]) == ["ABBA", "ABBA", "BAAB", "BAAB"]
    sides = "".join(block["side"] for block in comparison["blocks"])
    assert sides == "".join(comparison["orders"])
    for block in comparison["blocks"]:
        assert len(block["step_ms"]) == 3 and min(block["step_ms"]) > 0
        assert sum(block["step_ms"]) == pytest.approx(3 * block["wall_ms"], rel=0.2)
    for side in comparison["sides"].values():
        assert side["steps"] == 24 and side["low"] <= side["ms"] <= side["high"] and side["started_s"] > 0
        # warm-up, then each block after its untimed steps; all from the same weights on the same tokens
        assert [update for update, _ in side["losses"]] == list(range(2 + 8 * 4))
    assert comparison["losses"]["beyond"] is None and comparison["losses"]["compared"] == 10
    last = json.loads(out.splitlines()[-1])
    assert last["comparisons"][0]["ratio"] == comparison["ratio"]
    assert "blocks" not in last["comparisons"][0] and "losses" not in last["comparisons"][0]["sides"]["A"]
    assert result["conditions"]["command"].startswith("python -m pyllmc.ab -e tiny.bin")


def test_the_verdict_is_that_of_the_rounds(here, capsys):
    """The ratio in the file follows from its blocks."""
    call(capsys, "--b", "")
    (comparison,) = written()["comparisons"]
    logs = []
    for number in range(4):
        times = {s: [b["wall_ms"] for b in comparison["blocks"] if b["round"] == number and b["side"] == s] for s in "AB"}
        logs.append(np.log(times["B"]).mean() - np.log(times["A"]).mean())
    assert comparison["ratio"]["ratio"] == pytest.approx(np.exp(np.mean(logs)))
    assert "A and B have the same settings" in comparison["notes"]


def test_one_side_alone(here, capsys):
    status, out, _ = call(capsys)
    (comparison,) = written()["comparisons"]
    assert status == 0 and list(comparison["sides"]) == ["A"] and comparison["ratio"] is None
    assert comparison["sides"]["A"]["blocks"] == 8 and comparison["sides"]["A"]["tokens_per_s"] > 0


def test_each_switch(here, capsys):
    status, out, _ = call(capsys, "--each-switch", "--a", "recompute=1", "--rounds", 1)
    result = written()
    labels = [comparison["sides"]["B"]["label"] for comparison in result["comparisons"]]
    assert status == 0 and labels == ["threads=1", "recompute=2", "head_chunks=4"]  # recompute=1 would be A again
    assert all(comparison["sides"]["B"]["facts"]["recompute"] in (1, 2) for comparison in result["comparisons"])
    assert len(re.findall(r"^  [A-D]  ", out, re.M)) == 4


def test_a_sweep(here, capsys):
    status, out, _ = call(capsys, "--b", "threads=1", "--sweep", "batch=1,2,4", "--rounds", 1)
    result = written()
    assert status == 0 and [comparison["at"] for comparison in result["comparisons"]] == [{"batch": n} for n in (1, 2, 4)]
    assert [comparison["sides"]["B"]["tokens"] for comparison in result["comparisons"]] == [16, 32, 64]
    assert "B=1,2,4, T=16" in out and out.count("\nbatch=") == 3


def test_sides_of_different_size_are_compared_by_the_token(here, capsys):
    _, out, _ = call(capsys, "--b", "batch=4")
    ratio = written()["comparisons"][0]["ratio"]
    times = {s: written()["comparisons"][0]["sides"][s]["ms"] for s in "AB"}
    assert ratio["per"] == "token" and ratio["ratio"] == pytest.approx(times["B"] / times["A"] / 2, rel=0.5)
    assert "not comparable, batch is 2 and 4" in out and "the ratio is of the time for a token" in out


def test_fresh_models(here, capsys):
    status, out, _ = call(capsys, "--b", "recompute=1", "--fresh", "--rounds", 1)
    (comparison,) = written()["comparisons"]
    assert status == 0 and comparison["one_at_a_time"] and "for each block: as asked" in out
    assert [update for update, _ in comparison["sides"]["A"]["losses"]] == list(range(2 + 4))  # from the start each time


def test_shards_instead_of_random_tokens(here, capsys):
    write_shard("t.bin", np.random.default_rng(0).integers(0, 300, 2000))
    assert call(capsys, "-i", "t.bin", "--b", "", "--rounds", 1)[0] == 0
    first = written()["comparisons"][0]["sides"]["A"]["losses"]
    call(capsys, "--rounds", 1)
    assert written()["comparisons"][0]["sides"]["A"]["losses"] != first


def test_another_build_of_the_engine(here, capsys):
    shutil.copy(_find.find_library("cpu"), here / "other.so")
    status, out, err = call(capsys, "--b", "library=other.so", "--rounds", 1)
    assert status == 0, err
    assert "other.so" in str(written()["comparisons"][0]["differences"]) and "losses are equal" in out


# -- the figures -----------------------------------------------------------------------------------


def side(label, tokens=64, losses=None, **facts):
    made = types.SimpleNamespace(
        label=label, variant=parse_variant(""), clock="a clock", tokens=tokens, facts={"precision": "fp32", "tf32": 0, **facts},
        started_s=1.0, losses=losses or {}, notes=[], resolution_ms=0.0,
    )  # fmt: skip
    made.plan = lambda: types.SimpleNamespace(total=60, device_free=100)
    return made


def compared(a_ms, b_ms, rounds=6, **more):
    """A Comparison whose blocks took these times, with two steps each."""
    made = Comparison(side("a"), side("b"), orders=["ABBA"] * rounds)
    for number in range(rounds):
        for name in "ABBA":
            ms = a_ms if name == "A" else b_ms
            ms *= 1 + 0.001 * ((number * 7 + len(made.blocks)) % 5)
            made.blocks.append(Measured(name, number, 0.0, Block([ms, ms], ms, **more)))
    return made


@pytest.mark.parametrize(
    "ratio, words",
    [(0.9, r"faster by (9|10)\.\d+% \[9\.\d+, 10\.\d+\]"), (1.1, r"slower by (9|10)\.\d+% \[9\.\d+, 10\.\d+\]"),
     (1.0, r"no difference that 6 rounds could see \[-0\.\d+, \+0\.\d+%\]")],
)  # fmt: skip
def test_verdicts_in_words(ratio, words):
    found = record.one(compared(10.0, 10.0 * ratio))["ratio"]
    assert re.match(words, found["words"]), found
    assert found["low"] <= found["ratio"] <= found["high"] and found["ratio"] == pytest.approx(ratio, rel=2e-3)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_below_two_steps_is_no_figure(steps):
    """PLT-06."""
    made = Comparison(side("a"), None, orders=["AA"])
    if steps:
        made.blocks.append(Measured("A", 0, 0.0, Block([5.0] * steps, 5.0)))
    found = record.one(made)["sides"]["A"]
    assert (found["ms"], found["low"], found["spread"]) == ((5.0, 5.0, 0.0) if steps == 2 else (None, None, None))
    rows = report.side_rows([record.one(made)])
    assert (rows[0][2] == "n/a") == (rows[0][3] == "n/a") == (steps < 2) and "nan" not in str(rows)


def test_rounds_that_were_cut_off_do_not_count():
    made = compared(10.0, 11.0, rounds=5)
    made.blocks.pop()
    assert record.one(made)["ratio"]["rounds"] == 4
    assert record.one(compared(10.0, 11.0, rounds=2))["ratio"]["words"] == "2 rounds can't tell: 4 are the least"
    assert record.one(compared(10.0, 11.0, rounds=0))["ratio"]["words"] == "n/a: no round is complete"


def test_clocks_that_disagree_are_remarked():
    """PLT-08: beyond 2%, and not on a CPU, which is host and device at once."""
    for device, backend, expected in ((9.9, "cuda", False), (9.5, "cuda", True), (9.5, "cpu", False)):
        made = compared(10.0, 10.0, device_ms=[device, device])
        made.a.facts["backend"] = made.b.facts["backend"] = backend
        assert any("device waits between steps" in note for note in record.one(made)["notes"]) == expected


def test_a_hiccup_that_hides_a_difference_is_seen_through():
    """The mean of blocks can't tell then, and says so; the median of their steps can, and is told beside it."""
    made = compared(10.0, 10.2)
    for block in (measured.block for measured in made.blocks):
        block.step_ms = [block.wall_ms] * 20
    made.of("A")[3].wall_ms *= 1.2  # one step of twenty took five times as long
    found = record.one(made)
    assert found["ratio"]["verdict"] == "same" and found["by_median"]["verdict"] == "slower"
    assert any(note.startswith("B by the median step of each block") for note in found["notes"])
    assert not any("by the median" in note for note in record.one(compared(10.0, 10.2))["notes"])


def test_a_rounded_clock_widens_the_interval():
    exact, rounded = compared(1.0, 1.004), compared(1.0, 1.004)
    rounded.b.resolution_ms = 0.005
    assert record.one(exact)["ratio"]["verdict"] == "slower"
    assert record.one(rounded)["ratio"]["verdict"] == "same"


def test_losses_stand_above_times():
    made = compared(10.0, 8.0)
    made.a.losses, made.b.losses = {0: 5.0, 1: 4.9}, {0: 5.0, 1: 4.0}
    result = record.build([made], WORK, HERE)
    text = report.text_of(result)
    assert text.index("LOSSES DIFFER, B against A: step 2") < text.index("faster by")
    assert re.search(r"faster by .*LOSSES DIFFER", text)


WORK = {"model": "tiny", "parameters": 1234, "batch": 4, "seq_len": 16, "data": "random", "sweep": None,
        "rounds": 6, "steps": 2, "settle": 1, "warmup": 1}  # fmt: skip
HERE = {"device": "thing", "backend": "cuda", "engine": "e", "commit": None, "load": None, "command": "c", "problem": "no NVML"}


def test_what_is_not_known_is_not_available():
    text = report.text_of(record.build([compared(10.0, 10.0)], WORK, HERE))
    assert "driver n/a, power cap n/a W, SM clock n/a MHz" in text and "commit   n/a" in text and "no NVML" in text


def test_json_has_no_nan(tmp_path):
    made = compared(10.0, 10.0, device_ms=[float("nan"), float("inf")])
    made.a.losses = {0: float("nan")}
    record.write(tmp_path / "r.json", record.build([made], WORK, HERE))
    found = record.read(tmp_path / "r.json")
    assert found["comparisons"][0]["sides"]["A"]["losses"] == [[0, None]]
    assert found["comparisons"][0]["blocks"][0]["device_ms"] == [None, None]


# -- which models are alive ------------------------------------------------------------------------


class Counted:
    """A side that notes what happens to it."""

    def __init__(self, name, events, total):
        self.label, self._name, self._events = name, name, events
        self.plan = lambda: types.SimpleNamespace(total=total, device_free=100)
        self.open, self.close = (lambda word=word: events.append(name + word) for word in ("+", "-"))

    def block(self, steps):
        self._events.append(self._name)
        return Block([1.0] * steps, 1.0)


@pytest.mark.parametrize("total, events", [(40, "A+ B+ A B B A"), (60, "A- A+ A A- B+ B B- B+ B B- A+ A A-")])
def test_models_are_alive_together_when_they_fit(total, events):
    seen = []
    made = measure.plan(Comparison(Counted("A", seen, total), Counted("B", seen, total)), False)
    seed = next(seed for seed in range(9) if measure.orders(1, seed) == ["ABBA"])
    measure.run(made, 1, 3, seed)
    assert " ".join(seen) == events
    assert (made.notes != []) == (total == 60) and (total == 40 or "together they need" in made.notes[0])


def test_a_side_that_fits_nowhere():
    with pytest.raises(OutOfMemory, match="'B' needs"):
        measure.plan(Comparison(Counted("A", [], 10), Counted("B", [], 101)), False)


# -- ends ------------------------------------------------------------------------------------------


def stop_at(monkeypatch, number, error):
    """Make the n-th block of this engine raise."""
    whole, calls = EngineSide.block, []

    def block(self, steps):
        calls.append(self)
        if len(calls) == number:
            raise error
        return whole(self, steps)

    monkeypatch.setattr(EngineSide, "block", block)


def test_interrupted(here, capsys, monkeypatch):
    stop_at(monkeypatch, 7, KeyboardInterrupt())
    status, out, _ = call(capsys, "--b", "", "--json")
    result = written()
    assert status == 130 and not result["complete"] and result["stopped"] == "interrupted"
    assert len(result["comparisons"][0]["blocks"]) == 6 and result["comparisons"][0]["ratio"]["rounds"] == 1
    assert "INCOMPLETE: interrupted" in out and not json.loads(out.splitlines()[-1])["complete"]


def test_interrupted_before_anything(here, capsys, monkeypatch):
    stop_at(monkeypatch, 1, KeyboardInterrupt())
    status, out, err = call(capsys, "--b", "")
    assert (status, out) == (130, "") and "before anything was measured" in err and not Path("out.json").exists()


def test_a_failure_late_keeps_what_was_measured(here, capsys, monkeypatch):
    stop_at(monkeypatch, 6, OutOfMemory("no more"))
    status, out, err = call(capsys, "--b", "")
    assert status == 2 and err == "pyllmc.ab: no more\n" and written()["stopped"] == "no more"
    Path("out.json").unlink()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    stop_at(monkeypatch, 3, OutOfMemory("no more"))
    status, out, err = call(capsys, "--b", "")
    assert (status, out, err) == (2, "", "pyllmc.ab: no more\n") and not Path("out.json").exists()


@pytest.mark.parametrize(
    "words, part",
    [("--b steams=1", "did you mean 'streams'"), ("--b precision=bf16", "bf16"), ("--b recompute=9", "recompute"),
     ("--a batch=0", "batch"), ("--b batch=1.5", "batch must be an integer"), ("--b threads=-1", "threads"),
     ("--rounds 0", "--rounds must be at least 1"), ("--steps 0", "--steps must be"), ("--settle -1", "--settle"),
     ("--batch 0", "--batch must be"), ("-t 99", "longest sequence is 16"), ("-e d13", "unknown model descriptor"),
     ("-e none.bin", "no such file"), ("-i none*.bin", "no token shard matches"), ("--sweep bath=3", "did you mean 'batch'"),
     ("--sweep batch=2 --b batch=3", "batch is swept"), ("--roundz 3", "did you mean '--rounds'"), ("--draw none.json", "no such file"),
     ("--draw tiny.bin", "not a result of pyllmc.ab"), ("-o .", "expected a file's name"), ("-o tiny.bin/x.json", "nothing can be written"),
     ("--timeout 0", "--timeout must be"), ("--device gpu", "auto, cpu, cuda"), ("--lr -1", "--lr must be"), ("--b library=no.so", "no.so"),
     ("--reference-args='-r", "No closing quotation"), ("stray", "stray"), ("--b learning_rate=fast", "a number, on or off"),
     ("--sweep seq_len=8,64", "seq_len|context|64")],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(here, capsys, words, part):
    extra = ["--b", "reference:/bin/true"] if "reference-args" in words else []
    status, out, err = call(capsys, *extra, *words.split())
    assert status == 2, (out, err)
    assert re.search(part, err) and re.fullmatch(r"pyllmc\.ab: .+\n", err), err
    assert not Path("out.json").exists()


def test_whatever_the_parser_takes_is_in_the_help(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for rows in GROUPS.values():
        for row in rows:
            assert all(flag in text for flag in row.flags.split())
    defaults = Parser(GROUPS).read([])
    assert (defaults.a, defaults.b, defaults.rounds, defaults.device) == ("", None, 10, "auto")


def test_as_a_program(here):
    """In a process of its own, where only stdout's last line is JSON and nothing is drawn without matplotlib."""
    text = "import sys; sys.modules['matplotlib'] = None; from pyllmc.ab.command import main; sys.exit(main(sys.argv[1:]))"
    words = [word for word in TINY if word != "--no-plot"] + ["--rounds", "1", "--json", "--b", "threads=1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: no picture was drawn: ModuleNotFoundError" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["complete"]
    done = subprocess.run([sys.executable, "-c", text, "--draw", "out.json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and re.fullmatch(r"pyllmc\.ab: --draw needs matplotlib: .*\n", done.stderr)
    done = subprocess.run([sys.executable, "-m", "pyllmc.ab", "--rounds", "x"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


# -- the machine -----------------------------------------------------------------------------------


def test_conditions(tmp_path, monkeypatch):
    found = conditions.conditions(_native.load("cpu"), 0, ["python", "-m", "x", "a b"])
    assert found["backend"] == "cpu" and found["command"] == "python -m x 'a b'" and found["numpy"] == np.__version__
    monkeypatch.setattr(conditions._find, "CHECKOUT", tmp_path)
    assert conditions.commit() is None
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    assert re.fullmatch("[0-9a-f]{40}", conditions.commit())
    monkeypatch.setattr(conditions._find, "CHECKOUT", tmp_path / "inside")
    (tmp_path / "inside").mkdir()
    assert conditions.commit() is None  # somebody else's checkout around ours
    monkeypatch.setenv("PATH", "")
    assert conditions.commit() is None


def test_same_against_same_is_no_difference(here, capsys):
    """The engine itself. One false alarm in fifty is by design, three in a row would be a bias."""
    words = ["--b", "", "--rounds", 8, "--steps", 10]
    verdicts = []
    while len(verdicts) < 3 and "same" not in verdicts:
        call(capsys, *words)
        verdicts.append(written()["comparisons"][0]["ratio"]["verdict"])
    assert verdicts[-1] == "same"


def test_each_side_runs_with_its_own_switches(here, capsys, monkeypatch):
    made, make = Counter(), GPT2.__init__

    def seen(model, *args, **arguments):
        make(model, *args, **arguments)
        made[model.options.threads, model.options.recompute] += 1

    monkeypatch.setattr(GPT2, "__init__", seen)
    assert call(capsys, "--a", "threads=2", "--b", "threads=1", "--b", "threads=1 recompute=2", "--fresh")[0] == 0
    assert set(made) == {(2, 0), (1, 0), (1, 2)} and made[2, 0] == made[1, 0] + made[1, 2] > 2


def test_workloads_are_the_same_for_everybody(tmp_path):
    with Workload(CONFIG, length=5, most=32) as one, Workload(CONFIG, length=5, most=32) as two:
        for a, b in zip(one.batches(2, 16), two.batches(2, 16), strict=True):
            np.testing.assert_array_equal(a, b)
        with one.make_model({"batch": 2, "seq_len": 16, "device": "cpu"}) as model:
            drawn = {name: np.array(model.params[name]) for name in ("wte", "qkvw")}
        one.checkpoint()
        with one.make_model({"batch": 2, "seq_len": 16, "device": "cpu"}) as model:
            for name, values in drawn.items():
                np.testing.assert_array_equal(model.params[name], values)
        folder = one.folder
    assert not folder.exists()


def test_reading_foreign_files(tmp_path):
    for text in ("", "[]", "{}", '{"kind": "pyllmc.ab", "version": 99}', '{"kind": "x", "version": 1}', "\0\xff"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(FormatError, match="x.json"):
            record.read(tmp_path / "x.json")


@pytest.mark.gpu
def test_the_host_clock_agrees_with_the_device(cuda, tmp_path):
    """PLT-08: a block's wall time a step is within 2% of the time between the device's events, cold and warm. Means on
    both sides: under the power limit a few steps of a block are far longer than its median."""
    config = GPT2Config.from_descriptor("d12")
    with Workload(config, most=16 * 1024) as work:
        where = {"batch": 16, "seq_len": 1024, "device": "cuda"}
        for text in ("", "lag=0", "streams=1 graph=off"):
            one = EngineSide(parse_variant(text), work, where, settle=2, warmup=10)
            one.open()
            try:
                blocks = [one.block(20) for _ in range(2)]
            finally:
                one.close()
            for block in blocks:
                assert len(block.step_ms) == len(block.device_ms) == 20
                if text != "lag=0":  # there the device waits for Python after each step, which is a true difference
                    assert block.wall_ms == pytest.approx(np.mean(block.device_ms), rel=0.02), text
                assert np.sum(block.step_ms) == pytest.approx(20 * block.wall_ms, rel=0.01)

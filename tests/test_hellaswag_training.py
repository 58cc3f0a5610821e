"""HellaSwag while training: when it is measured, where it is logged and shown, and what happens without its file."""

import json
import re

import numpy as np
import pytest
from test_train_cli import TINY, call, here, shards  # noqa: F401

from pyllmc import GPT2, GPT2Config, TokenLoader
from pyllmc import trainer as trainer_module
from pyllmc.callbacks import Callbacks
from pyllmc.checkpoint import peek_checkpoint
from pyllmc.evaluation import accuracy
from pyllmc.formats import write_multiple_choice
from pyllmc.history import read_history
from pyllmc.multiple_choice import Example
from pyllmc.options_file import read_options
from pyllmc.rundir import find_latest_complete, read_json_log, read_main_log
from pyllmc.train_options import ROWS
from pyllmc.trainer import Trainer

DEFAULT = "dev/data/hellaswag/hellaswag_val.bin"  # where llm.c looks, from the working folder


def write_examples(path, count=9, vocab=50, longest=6):
    random = np.random.default_rng(1)
    ids = lambda: random.integers(0, vocab, random.integers(1, longest)).astype(np.uint16)  # noqa: E731
    path.parent.mkdir(parents=True, exist_ok=True)
    examples = [Example(i, int(random.integers(4)), ids(), tuple(ids() for _ in range(4))) for i in range(count)]
    write_multiple_choice(path, examples)
    return path


class Told(Callbacks):
    def __init__(self):
        self.evaluations, self.notes = [], []

    def on_evaluation(self, step, accuracy):
        self.evaluations.append((step, accuracy))

    def on_note(self, text):
        self.notes.append(text)


def test_when_and_where_it_is_logged(here, shards, capsys):  # noqa: F811
    """With each validation but that of the untrained model, and at the end; the last is the saved model's."""
    write_examples(here / DEFAULT)
    status, out, err = call(capsys, *shards, *TINY, "--vocab", 50, "-x", 5, "-s", 0, "-h", 1, "-o", "r", "-n", 1)
    assert (status, err) == (0, "")
    logged = read_main_log("r/main.log")["eval"]
    assert [step for step, _ in logged] == [2, 4, 5]
    records = [record for record in read_json_log("r/log.jsonl") if record["kind"] == "eval"]
    assert [record["step"] for record in records] == [2, 4, 5]
    for (step, rounded), record in zip(logged, records, strict=True):
        path = f"r/model_{step:08}.bin"
        with GPT2.from_checkpoint(path, batch=3, seq_len=peek_checkpoint(path)[0].context, device="cpu") as model:
            assert accuracy(model, DEFAULT) == (record["accuracy"], record["correct"], record["count"])
        assert rounded == round(record["accuracy"], 4) and record["count"] == 9
        assert f"step      {step}/5  HellaSwag accuracy {record['accuracy']:.4f}" in out
    assert re.search(rf"HellaSwag +accuracy {records[-1]['accuracy']:.4f}", out)
    history = read_history("r")
    assert history.eval_step.tolist() == [2, 4, 5]


def test_it_changes_nothing_in_training(here, shards, capsys):  # noqa: F811
    write_examples(here / "e.bin")
    for folder, words in (("with", ["--hellaswag-data", "e.bin"]), ("without", ["--hellaswag-data", "e.bin", "-h", 0])):
        assert call(capsys, *shards, *TINY, "--vocab", 50, "-v", 1, *words, "-o", folder, "--no-plot")[0] == 0
    losses = {f: [r["loss"] for r in read_json_log(f"{f}/log.jsonl") if r["kind"] == "train"] for f in ("with", "without")}
    assert losses["with"] == losses["without"]
    kept = {folder: read_options(f"{folder}/run.toml", ROWS).get("hellaswag_data") for folder in losses}
    assert kept == {"with": str(here / "e.bin"), "without": None}
    assert read_main_log("with/main.log")["eval"] and not read_main_log("without/main.log")["eval"]
    weights = [open(f"{folder}/model_00000004.bin", "rb").read() for folder in losses]
    assert weights[0] == weights[1]


def test_without_validation_it_is_measured_at_the_end(here, shards, capsys):  # noqa: F811
    write_examples(here / "e.bin")
    words = [*shards, *TINY, "--vocab", 50, "-v", 0, "--hellaswag-data", "e.bin", "-o", "r", "--no-plot"]
    assert call(capsys, *words)[0] == 0
    assert [step for step, _ in read_main_log("r/main.log")["eval"]] == [4]


def test_the_picture_shows_it(here, shards, capsys):  # noqa: F811
    from pyllmc.figures import run_figure

    write_examples(here / "e.bin")
    for folder, words in (("r", ["--hellaswag-data", "e.bin"]), ("q", [])):
        assert call(capsys, *shards, *TINY, "--vocab", 50, *words, "-o", folder)[0] == 0
    names = {f: [axes.get_label() for axes in run_figure(read_history(f)).axes] for f in ("r", "q")}
    assert names == {"r": ["loss", "eval", "time"], "q": ["loss", "time"]}


@pytest.mark.parametrize("words, part", [
    (["-h", 1], f"no evaluation file {DEFAULT} \\(-h 1\\).*--hellaswag-data names another"),
    (["--hellaswag-data", "none.bin"], "no evaluation file none.bin"), (["-h", 2], "expected 0 or 1"),
    (["-h"], "expected one argument"), (["--hellaswag-data", "t_0.bin"], "t_0.bin: not a multiple-choice|magic"),
    (["--hellaswag-data", "wide.bin"], r"wide.bin: example \d at byte \d+: token id \d+, vocabulary is 50"),
    (["--hellaswag-data", "long.bin"], "long.bin: no example .* more than 16 tokens"),
])  # fmt: skip
def test_what_cannot_be_measured_is_told_before_training(here, shards, capsys, words, part):  # noqa: F811
    write_examples(here / "wide.bin", vocab=300)
    write_multiple_choice(here / "long.bin", [Example(0, 0, np.array([1]), (np.arange(17), np.array([1])))])
    status, _, err = call(capsys, *shards, *TINY, "--vocab", 50, *words)
    assert status == 2 and re.search(part, err) and err.count("\n") == 1, err
    assert not list(here.glob("runs/*"))


def test_what_is_cut_is_noted(here, shards):  # noqa: F811
    long = Example(0, 0, np.arange(40), (np.array([1]), np.array([2, 3])))
    write_multiple_choice(here / "e.bin", [long])
    told = Told()
    with tiny() as model, TokenLoader("t_0.bin", 2, 8) as data:
        Trainer(model, data, callbacks=[told], steps=2, val_every=1, sample_every=0, hellaswag=here / "e.bin").run()
    assert told.notes == [f"{here / 'e.bin'}: 1 of 1 contexts lose their beginning in rows of 8"]
    assert [step for step, _ in told.evaluations] == [1, 2]


def tiny():
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50, context=8)
    return GPT2.from_config(config, batch=2, seq_len=8, device="cpu")


def test_a_failure_at_the_end_is_a_warning(here, shards, monkeypatch):  # noqa: F811
    """CKP-01: the last checkpoint is there already."""
    write_examples(here / "e.bin", longest=3)

    def fail(*_, **__):
        assert find_latest_complete("r").step == 2
        raise RuntimeError("no luck")

    monkeypatch.setattr(trainer_module, "accuracy", fail)
    told = Told()
    with tiny() as model, TokenLoader("t_0.bin", 2, 8) as data:
        settings = {"steps": 2, "val_every": 0, "sample_every": 0, "run_dir": "r", "hellaswag": "e.bin"}
        result = Trainer(model, data, callbacks=[told], **settings).run()
    assert result.warnings == ("the last evaluation failed: RuntimeError: no luck",) and told.notes == [*result.warnings]
    assert result.status == "finished" and result.accuracy is None


def test_a_resumed_run_measures_again_and_logs_once(here, shards, capsys):  # noqa: F811
    write_examples(here / "e.bin")
    words = [*shards, *TINY, "--vocab", 50, "--hellaswag-data", "e.bin", "-s", 0, "-o", "r", "--no-plot"]
    assert call(capsys, *words)[0] == 0
    assert call(capsys, *words, "-y", 1, "-x", 8)[0] == 0
    assert [step for step, _ in read_main_log("r/main.log")["eval"]] == [2, 4, 6, 8]
    lines = [json.loads(line) for line in open("r/log.jsonl")]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [2, 4, 6, 8]


def test_help_says_where_it_is_looked_for(capsys):
    status, out, _ = call(capsys, "--help")
    assert status == 0 and DEFAULT in re.sub(r"\s+", "", out) and "-h 0|1" in out

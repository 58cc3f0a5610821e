"""Logging backends: what reaches them and when, one that fails, and that nothing is there twice after a resume."""

import json
import math
import re
import sys
import types

import pytest
from test_hellaswag_training import write_examples
from test_train_cli import TINY, call, here, shards  # noqa: F401
from test_trainer import PLAIN, make, train_data, val_data
from test_trainer import shards as loop_shards  # noqa: F401

from pyllmc.callbacks import Callbacks, StepReport
from pyllmc.errors import InvalidArgument, Unavailable
from pyllmc.loggers import Logger, backends_of
from pyllmc.monitor import GpuReading
from pyllmc.rundir import find_latest_complete, read_json_log
from pyllmc.trainer import Trainer


class Memory:
    """A backend that keeps what it gets, and fails at the n-th number if told so."""

    name = "memory"

    def __init__(self, fails_at=math.inf, opens=True):
        self.events, self._left, self._opens = [], fails_at, opens

    def open(self, run):
        self.run = run
        self.events.append("open")
        if not self._opens:
            raise Unavailable("no memory today")

    def scalars(self, step, values):
        self._left -= 1
        if self._left < 0:
            raise OSError(28, "No space left on device")
        self.events.append((step, values))

    def text(self, step, name, content):
        self.events.append((step, name, content))

    def close(self, error):
        self.events.append(("close", error))


def train(data, backend, notes, **settings):
    with train_data(data) as loader, val_data(data) as val, make() as model:
        trainer = Trainer(model, loader, val, callbacks=[Logger(backend, tell=notes.append)], **{**PLAIN, **settings})
        return trainer.run()


def test_what_a_backend_gets(loop_shards, tmp_path):  # noqa: F811
    backend, notes = Memory(), []
    settings = {"steps": 3, "val_every": 2, "sample_every": 3, "sample_tokens": 4, "run_dir": tmp_path / "r"}
    train(loop_shards, backend, notes, hellaswag=write_examples(tmp_path / "e.bin", longest=3), **settings)
    assert notes == [] and (backend.events[0], backend.events[-1]) == ("open", ("close", None))
    records = [record for record in read_json_log(tmp_path / "r" / "log.jsonl") if record["kind"] != "checkpoint"]
    numbers = [event for event in backend.events[1:-1] if len(event) == 2]
    names = {"train": {"loss": "train/loss", "norm": "train/grad_norm", "lr": "train/lr", "ms": "speed/ms", "tok_s": "speed/tok_s"},
             "val": {"val_loss": "val/loss"}, "eval": {"accuracy": "val/hellaswag_accuracy"}}  # fmt: skip
    logged = {(record["step"], kind): record for record in records for kind in [record["kind"]]}
    for (step, kind), record in logged.items():
        wanted = {theirs: record[ours] for ours, theirs in names[kind].items()}
        assert [v for s, v in numbers if s == step and wanted.items() <= v.items()], (step, kind)
    assert len(numbers) == len(records) == 8  # 3 updates, validation before 0 and 2 and after 3, accuracy at 2 and 3
    (text,) = [event for event in backend.events[1:-1] if len(event) == 3]
    assert text[:2] == (3, "sample") and re.fullmatch(r"\d+( \d+){3}", text[2])
    assert backend.run.folder == tmp_path / "r" and (backend.run.first_step, backend.run.resumed) == (0, False)
    config = backend.run.config
    assert {"layers": 1, "vocab": 50, "lr": 1e-2, "steps": 3, "schedule": "cosine", "weight_decay": 0.0}.items() <= config.items()
    assert all(isinstance(value, (bool, int, float, str)) for value in config.values()) and not {"hyper", "resume"} & config.keys()


def test_what_was_not_measured_is_left_out():
    backend = Memory()
    logger = Logger(backend)
    logger._open = True
    logger.on_step(StepReport(7, 1.0, math.nan, 1e-3, 10.0, 1e5, 0.1, None, "loss is an outlier", GpuReading(650.0, None, 61)))
    ((step, values),) = backend.events
    assert step == 7 and values["train/skipped"] == 1.0 and math.isnan(values["train/grad_norm"])
    assert values["gpu/power_w"] == 650 and "gpu/sm_clock_mhz" not in values and "speed/mfu" not in values


@pytest.mark.parametrize("at", [0, 2])
def test_a_backend_that_fails_is_one_note(loop_shards, at):  # noqa: F811
    backend, notes = Memory(fails_at=at), []
    result = train(loop_shards, backend, notes, steps=6)
    assert result.status == "finished" and result.step == 6
    assert notes == ["memory gets nothing more of this run: OSError: no space left on the device"]
    assert len(backend.events) == at + 2 and backend.events[-1][0] == "close"


def test_without_someone_to_tell_it_is_a_warning(loop_shards):  # noqa: F811
    with train_data(loop_shards) as loader, make() as model, pytest.warns(UserWarning, match="memory gets nothing more"):
        Trainer(model, loader, callbacks=[Logger(Memory(fails_at=1))], **{**PLAIN, "steps": 3}).run()


def test_a_backend_that_cannot_start_ends_it_before_training(loop_shards, tmp_path):  # noqa: F811
    with pytest.raises(Unavailable, match="no memory today"):
        train(loop_shards, Memory(opens=False), [], run_dir=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_it_is_closed_however_the_run_ends(loop_shards):  # noqa: F811
    class Stops(Callbacks):
        def on_step(self, report):
            if report.step == 2:
                raise KeyboardInterrupt

    backend = Memory()
    with train_data(loop_shards) as loader, make() as model, pytest.raises(KeyboardInterrupt):
        Trainer(model, loader, callbacks=[Logger(backend), Stops()], **PLAIN).run()
    assert backend.events[-1][0] == "close" and isinstance(backend.events[-1][1], KeyboardInterrupt)


# -- the command line


@pytest.mark.parametrize("name, package", [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_one_sentence_before_training(here, capsys, monkeypatch, name, package):  # noqa: F811
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    status, _, err = call(capsys, "--data", "text.txt", *TINY, "--log", name)
    assert status == 2 and f"needs its package: pip install {package} (" in err and err.count("\n") == 1
    assert not list(here.glob("runs/*"))
    assert call(capsys, "--data", "text.txt", *TINY, "--no-plot")[0] == 0  # nobody asked


def test_names_of_backends(here, capsys, monkeypatch):  # noqa: F811
    status, _, err = call(capsys, "--data", "text.txt", *TINY, "--log", "tensorbord")
    assert status == 2 and "did you mean 'tensorboard'? (known: tensorboard, wandb)" in err
    with pytest.raises(InvalidArgument, match="--log ''"):
        backends_of(["wandb,"])
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    assert len(backends_of(["wandb,wandb", "wandb"])) == 1 and backends_of([]) == []


# -- TensorBoard, read by its own reader


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def test_tensorboard_reads_what_was_logged(here, shards, capsys):  # noqa: F811
    pytest.importorskip("tensorboard")
    write_examples(here / "e.bin")
    words = ["--vocab", 50, "--log", "tensorboard", "--hellaswag-data", "e.bin", "--no-plot", "-o", "r"]
    status, _, err = call(capsys, *shards, *TINY, *words)
    assert (status, err) == (0, "")
    records, found = read_json_log("r/log.jsonl"), read_events("r")
    for kind, ours, theirs in (("train", "loss", "train/loss"), ("train", "lr", "train/lr"), ("train", "tok_s", "speed/tok_s"),
                               ("val", "val_loss", "val/loss"), ("eval", "accuracy", "val/hellaswag_accuracy")):  # fmt: skip
        expected = [(record["step"], pytest.approx(record[ours], rel=1e-6)) for record in records if record["kind"] == kind]
        assert expected and [(event.step, event.value) for event in found.Scalars(theirs)] == expected
    (sample,) = found.Tensors("sample")
    assert sample.step == 4 and re.fullmatch(rb"    \d+( \d+){19}", sample.tensor_proto.string_val[0])
    assert found.SummaryMetadata("sample").plugin_data.plugin_name == "text"
    from tensorboard.plugins.hparams import plugin_data_pb2

    raw = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    start = plugin_data_pb2.HParamsPluginData.FromString(raw).session_start_info
    assert start.hparams["vocab"].number_value == 50 and start.hparams["schedule"].string_value == "cosine"


def test_tensorboard_after_a_resume_has_each_step_once(here, shards, capsys):  # noqa: F811
    """The first run got two steps beyond its checkpoint; these are void, as in the run's own log."""
    pytest.importorskip("tensorboard")
    words = [*shards, *TINY, "--vocab", 50, "-v", 1, "-s", 0, "--log", "tensorboard", "--no-plot", "-o", "r"]
    assert call(capsys, *words, "-n", 4, "-x", 6)[0] == 0
    for name in ("DONE", "extra", "state", "model"):
        next((here / "r").glob(f"{name}_00000006*")).unlink()
    assert call(capsys, *words, "-y", 1, "-x", 8)[0] == 0
    found, records = read_events("r"), read_json_log("r/log.jsonl")
    for kind, ours, theirs in (("train", "loss", "train/loss"), ("val", "val_loss", "val/loss")):
        expected = [(r["step"], pytest.approx(r[ours], rel=1e-6)) for r in records if r["kind"] == kind]
        assert [(e.step, e.value) for e in found.Scalars(theirs)] == expected
    assert [e.step for e in found.Scalars("train/loss")] == list(range(8))


def test_tensorboard_whose_file_cannot_grow(here, shards, capsys, monkeypatch):  # noqa: F811
    pytest.importorskip("tensorboard")
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(self, data, write=RecordWriter.write):
        if b"train/loss" in data:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    status, out, _ = call(capsys, *shards, *TINY, "--vocab", 50, "--log", "tensorboard", "--no-plot", "-o", "r")
    assert status == 0 and out.count("note: TensorBoard gets nothing more of this run: OSError") == 1
    assert find_latest_complete("r").step == 4


# -- Weights & Biases, a stand-in for its package


class Service:
    """What the wandb package is to us: init, and runs that know their id and next step."""

    def __init__(self, down=False):
        self.runs, self.inits, self.down = {}, [], down

    def init(self, **keywords):
        self.inits.append(keywords)
        if self.down:
            raise RuntimeError("api_key not configured (no-tty)")
        run_id = keywords.get("id") or f"run{len(self.runs)}"
        run = self.runs.setdefault(run_id, types.SimpleNamespace(id=run_id, rows={}, step=0, ended=[], fails=False))

        def log(values, step):
            if run.fails:
                raise ConnectionError("network is gone")
            assert step >= run.step, "the service takes no step twice"
            run.rows.setdefault(step, {}).update(values)

        def finish(exit_code):
            run.ended.append(exit_code)
            run.step = max(run.rows, default=-1) + 1

        run.log, run.finish = log, finish
        return run


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


def test_wandb_gets_a_run(here, shards, capsys, service):  # noqa: F811
    words = [*shards, *TINY, "--vocab", 50, "--log", "wandb", "--no-plot", "-o", "mine"]
    status, _, err = call(capsys, *words)
    assert (status, err) == (0, "")
    (run,) = service.runs.values()
    (keywords,) = service.inits
    assert (keywords["project"], keywords["name"], keywords["dir"]) == ("pyllmc", "mine", "mine")
    assert keywords["config"]["vocab"] == 50 and not {"id", "resume"} & keywords.keys()
    records = [record for record in read_json_log("mine/log.jsonl") if record["kind"] == "train"]
    assert [run.rows[r["step"]]["train/loss"] for r in records] == [r["loss"] for r in records]
    assert sorted(run.rows) == [0, 1, 2, 3, 4] and "val/loss" in run.rows[4] and run.ended == [0]
    assert (here / "mine" / "wandb_id").read_text() == "run0\n"


def test_wandb_goes_on_with_the_same_run(here, shards, capsys, service, monkeypatch):  # noqa: F811
    words = [*shards, *TINY, "--vocab", 50, "-v", 0, "-s", 0, "--log", "wandb", "--no-plot", "-o", "r"]
    assert call(capsys, *words, "-n", 2)[0] == 0
    for name in ("DONE", "extra", "state", "model"):
        next((here / "r").glob(f"{name}_00000004*")).unlink()
    monkeypatch.setenv("WANDB_PROJECT", "other")
    assert call(capsys, *words, "-y", 1, "-x", 6)[0] == 0  # from step 2: 2 and 3 are there already
    (run,) = service.runs.values()
    assert sorted(run.rows) == [0, 1, 2, 3, 4, 5]
    assert service.inits[1]["id"] == "run0" and service.inits[1]["resume"] == "allow"
    assert service.inits[1]["project"] == "other"


def test_wandb_that_cannot_start_and_one_that_goes_away(here, shards, capsys, service):  # noqa: F811
    words = [*shards, *TINY, "--vocab", 50, "--log", "wandb", "--no-plot"]
    service.down = True
    status, _, err = call(capsys, *words, "-o", "r")
    assert status == 2 and "could not be started: api_key not configured" in err and "WANDB_MODE=offline" in err
    assert err.count("\n") == 1 and not (here / "r").exists()
    service.down = False
    service.runs["gone"] = types.SimpleNamespace(id="gone", rows={}, step=0, ended=[], fails=True)
    (here / "r").mkdir()
    (here / "r" / "wandb_id").write_text("gone\n")
    status, out, _ = call(capsys, *words, "-o", "r", "-y", 1)
    assert status == 0 and out.count("note: Weights & Biases gets nothing more of this run: ConnectionError") == 1
    assert service.runs["gone"].ended == [1] and find_latest_complete("r").step == 4


def test_wandb_itself_offline(here, shards, capsys, monkeypatch):  # noqa: F811
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    status, out, _ = call(capsys, *shards, *TINY, "--vocab", 50, "--log", "wandb", "--no-plot", "-o", "r")
    assert status == 0 and "gets nothing more" not in out
    assert list((here / "r" / "wandb").glob("offline-run-*/*.wandb")) and (here / "r" / "wandb_id").read_text().strip()


def test_the_run_keeps_its_own_log(here, shards, capsys, service):  # noqa: F811
    """Whatever else is logged to, log.jsonl is there and is JSON."""
    assert call(capsys, *shards, *TINY, "--vocab", 50, "--log", "wandb", "-o", "r")[0] == 0
    assert all(json.loads(line) for line in open("r/log.jsonl")) and (here / "r" / "run.png").exists()

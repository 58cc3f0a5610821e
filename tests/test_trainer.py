"""The training loop: order of events, resuming, saving, settings. The data is a few small shards of its own."""

import math
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from pyllmc import GPT2, GPT2Config, TokenLoader
from pyllmc import trainer as trainer_module
from pyllmc.callbacks import Callbacks
from pyllmc.errors import FormatError, InvalidArgument, StateError
from pyllmc.feed import Feed
from pyllmc.flops import flops_per_token, utilisation
from pyllmc.monitor import GpuReading
from pyllmc.results import StepHandle
from pyllmc.rundir import find_latest_complete, read_json_log, read_main_log
from pyllmc.shards import write_shard
from pyllmc.trainer import Trainer

B, T = 2, 8
CONFIG = GPT2Config(layers=1, heads=2, channels=32, vocab=50, context=8)
PLAIN = {"steps": 10, "lr": 1e-2, "val_every": 0, "sample_every": 0}


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """Pattern of training shards of 7 and 5 batches, and a validation shard of 4."""
    folder = tmp_path_factory.mktemp("shards")
    random = np.random.default_rng(0)
    for name, batches in (("train_0", 7), ("train_1", 5), ("val_0", 4)):
        write_shard(folder / f"{name}.bin", random.integers(0, CONFIG.vocab, batches * B * T + 1))
    return folder


class Recorder(Callbacks):
    """Keeps what it is told."""

    def __init__(self):
        self.reports, self.events, self.notes = [], [], []

    def on_step(self, report):
        self.reports.append(report)
        self.events.append(("step", report.step))

    def on_validation(self, step, loss):
        self.events.append(("val", step))

    def on_sample(self, step, ids):
        self.events.append(("sample", step))

    def on_checkpoint(self, step, path):
        self.events.append(("saved", step))

    def on_note(self, text):
        self.notes.append(text)


class Listed(TokenLoader):
    """A loader that remembers what it served."""

    def next_into(self, inputs, targets):
        super().next_into(inputs, targets)
        self.served = [*getattr(self, "served", []), inputs.tobytes() + targets.tobytes()]


def train_data(shards, shuffle=True, kind=TokenLoader):
    return kind(str(shards / "train_*.bin"), B, T, shuffle=shuffle, vocab=CONFIG.vocab)


def val_data(shards):
    return TokenLoader(shards / "val_0.bin", B, T, vocab=CONFIG.vocab)


def make(init="random", **options):
    return GPT2.from_config(CONFIG, init=init, batch=B, seq_len=T, device="cpu", **options)


def everything(model):
    """All that the next update depends on, as bytes."""
    model.synchronize()
    kinds = (model.params, model.m, model.v)
    return [array.tobytes() for kind in kinds for array in kind.values()] + [model.rng, str(model.guard), model.updates]


def run(shards, model=None, **settings):
    """Train from random weights; (result, recorder, everything)."""
    with train_data(shards) as loader, val_data(shards) as val, model or make() as model:
        recorder = Recorder()
        trainer = Trainer(model, loader, val, callbacks=[recorder], **{**PLAIN, **settings})
        result = trainer.run()
        return result, recorder, everything(model)


# -- settings


@pytest.mark.parametrize(
    "wrong, error, part",
    [({"batchsize": 4}, TypeError, "no setting 'batchsize'"), ({"lr_": 1e-3}, TypeError, "did you mean 'lr'"),
     ({"schedule": "cosin"}, InvalidArgument, "did you mean 'cosine'"), ({"schedule": ""}, InvalidArgument, "wsd"),
     ({"schedule": None}, InvalidArgument, "cosine, linear"), ({"val_every": -1}, InvalidArgument, "val_every"),
     ({"sample_every": -1}, InvalidArgument, "sample_every"), ({"checkpoint_every": -2}, InvalidArgument, "checkpoint"),
     ({"checkpoint_every": 1.5}, InvalidArgument, "whole number"), ({"steps": 0}, InvalidArgument, "steps"),
     ({"val_batches": 0}, InvalidArgument, "val_batches"), ({"result_lag": -1}, InvalidArgument, "result_lag"),
     ({"total_tokens": 0}, InvalidArgument, "total_tokens"), ({"total_tokens": 7}, InvalidArgument, "use 16$"),
     ({"total_tokens": 40}, InvalidArgument, "use 32 or 48"), ({"lr": math.nan}, InvalidArgument, "rate"),
     ({"hyper": {"beta3": 0}}, TypeError, "did you mean 'beta"), ({"hyper": {"step": 3}}, InvalidArgument, "step"),
     ({"resume": True}, InvalidArgument, "run_dir"), ({"peak_tflops": -1}, InvalidArgument, "above 0"),
     ({"gpu_every": -1}, InvalidArgument, "gpu_every"),
     ({"resume_weights_only": True}, InvalidArgument, "needs resume"), ({"peak_tflops": 0}, InvalidArgument, "peak_tflops")],
)  # fmt: skip
def test_wrong_settings_are_refused_at_once(shards, wrong, error, part):
    with make() as model, train_data(shards) as loader, pytest.raises(error, match=part):
        Trainer(model, loader, **wrong)


def test_loader_of_another_shape(shards):
    with make() as model, TokenLoader(shards / "val_0.bin", 1, T) as other:
        with pytest.raises(InvalidArgument, match="train_loader serves B 1, T 8; the model takes B 2"):
            Trainer(model, other)
        with pytest.raises(InvalidArgument, match="val_loader"), train_data(shards) as loader:
            Trainer(model, loader, other)


def test_zero_is_off_everywhere(shards):
    result, recorder, _ = run(shards, steps=3)
    assert recorder.events == [("step", 0), ("step", 1), ("step", 2)]
    assert result.status == "finished" and result.val_loss is None and result.checkpoint is None


@pytest.mark.parametrize("micro, steps, updates", [(2, None, 6), (8, None, 1), (8, 10, 10), (13, None, 1)])
def test_steps_count_updates_not_micro_batches(shards, micro, steps, updates):
    """DAT-10: one epoch of 12 batches is 6 updates of two; the rate stays between its ends."""
    settings = {"steps": steps, "total_tokens": micro * B * T, "final_fraction": 0.1}
    _, recorder, _ = run(shards, **settings)
    assert [report.step for report in recorder.reports] == list(range(updates))
    rates = [report.lr for report in recorder.reports]
    assert max(rates) == rates[0] == 1e-2 and min(rates) >= 1e-3


@pytest.mark.filterwarnings("ignore:warm-up takes")
@pytest.mark.parametrize("warmup, steps", [(3, 3), (5, 3), (0, 1), (1, 1)])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_odd_warmups(shards, schedule, warmup, steps):
    """NUM-22, through the loop."""
    _, recorder, _ = run(shards, steps=steps, warmup=warmup, schedule=schedule, final_fraction=0.0)
    assert len(recorder.reports) == steps
    assert all(0 <= report.lr <= 1e-2 and math.isfinite(report.loss) for report in recorder.reports)


# -- the order of things


def test_what_comes_when(shards, tmp_path):
    settings = {"steps": 4, "val_every": 2, "sample_every": 4, "checkpoint_every": 2, "run_dir": tmp_path / "r"}
    result, recorder, _ = run(shards, **settings)
    events = [event for event in recorder.events if event != ("saved", 2)]  # which is written beside the steps
    assert len(events) == len(recorder.events) - 1
    assert events == [
        ("val", 0), ("step", 0), ("step", 1), ("val", 2), ("step", 2), ("step", 3), ("saved", 4), ("val", 4), ("sample", 4),
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path / "r")) == [
        "DONE_00000002", "DONE_00000004", "extra_00000002.json", "extra_00000004.json", "log.jsonl", "main.log",
        "model_00000002.bin", "model_00000004.bin", "state_00000002_00000.bin", "state_00000004_00000.bin",
    ]  # fmt: skip
    log = read_main_log(tmp_path / "r" / "main.log")
    assert [row[0] for row in log["trl"]] == [0, 1, 2, 3] and [row[0] for row in log["tel"]] == [0, 2, 4]
    records = read_json_log(tmp_path / "r" / "log.jsonl")
    assert {"step", "loss", "norm", "lr", "ms", "tok_s", "host_ms", "skipped", "time"} <= records[1].keys()
    assert 0 <= result.host_share < 1


@pytest.mark.parametrize("options", [{}, {"prefetch": "off"}, {"slots": 2}, {"slots": 5}])
@pytest.mark.parametrize("lag", [0, 1, 7])
def test_lag_and_prefetch_change_nothing(shards, lag, options):
    expected = run(shards)
    found = run(shards, make(**options), result_lag=lag, val_every=3, sample_every=4)
    assert found[2] == expected[2]
    assert [r.loss for r in found[1].reports] == [r.loss for r in expected[1].reports]


def test_validation_does_not_touch_the_training_batches(shards):
    """DAT-13."""
    served, weights = [], []
    for every in (0, 1):
        with train_data(shards, kind=Listed) as loader, val_data(shards) as val, make() as model:
            Trainer(model, loader, val, **{**PLAIN, "steps": 20, "val_every": every}).run()
            served.append(loader.served[:20])
            weights.append(everything(model))
    assert served[0] == served[1] and weights[0] == weights[1]


def test_accumulation_takes_the_batches_in_order(shards):
    with train_data(shards, shuffle=False, kind=Listed) as loader, make() as model:
        Trainer(model, loader, **{**PLAIN, "steps": 2, "total_tokens": 3 * B * T}).run()
        assert loader.state().sample == 6  # where training got to, not how far the thread had read ahead
        with train_data(shards, shuffle=False, kind=Listed) as again:
            for _ in range(6):
                again.next_batch()
            assert loader.served[:6] == again.served


def test_overfit_repeats_one_batch(shards):
    with val_data(shards) as loader, make() as model:
        recorder = Recorder()
        Trainer(model, loader, callbacks=[recorder], **{**PLAIN, "overfit": True, "steps": 60}).run()
        assert recorder.reports[-1].loss < 0.5 < 3 < recorder.reports[0].loss


def test_nothing_is_left_behind(shards):
    """After a run, an interrupted one too, threads have ended and all slots are free."""
    with train_data(shards) as loader, make() as model:
        before = threading.active_count()
        Trainer(model, loader, **PLAIN).run()

        class Interrupts(Callbacks):
            def on_step(self, report):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Trainer(model, loader, callbacks=[Interrupts()], **PLAIN).run()
        assert threading.active_count() == before
        held = [model.acquire_slot(timeout=5) for _ in range(model.options.slots)]
        assert len(held) == model.options.slots


def test_feed_ends_while_it_waits_for_a_slot(shards):
    with train_data(shards) as loader, make() as model:
        held = [model.acquire_slot(timeout=5) for _ in range(model.options.slots)]
        feed = Feed(model, loader)
        feed.close()
        feed.close()
        with pytest.raises(StateError, match="closed"):
            feed.get()
        assert held


@pytest.mark.parametrize("refills", [True, False])
def test_a_late_feed_serves_the_same_batches(shards, refills):
    with train_data(shards) as loader, train_data(shards) as other, make() as model:
        with Feed(model, loader, late=True) as feed:
            for _ in range(12):
                slot, _ = feed.get()
                assert np.array_equal(slot.inputs, other.next_batch()[0])
                slot.release()
                if refills:
                    feed.refill()


def test_token_beyond_the_vocabulary_ends_the_run(shards, tmp_path):
    write_shard(tmp_path / "bad.bin", [1] * 40 + [CONFIG.vocab] + [1] * 40)
    with TokenLoader(tmp_path / "bad.bin", B, T, vocab=CONFIG.vocab) as loader, make() as model:
        with pytest.raises(FormatError, match=r"bad.bin: token 40 .* is 50"):
            Trainer(model, loader, run_dir=tmp_path / "r", **PLAIN).run()
    assert sorted(os.listdir(tmp_path / "r")) == ["log.jsonl", "main.log"]  # of the two updates before


def test_a_run_that_never_began_leaves_nothing(shards, tmp_path):
    """So that the corrected command, with the same folder, isn't told of a run that is there already."""
    write_shard(tmp_path / "bad.bin", [CONFIG.vocab] * 40)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    for name in ("new", "mine"):
        with TokenLoader(tmp_path / "bad.bin", B, T, vocab=CONFIG.vocab) as loader, make() as model:
            with pytest.raises(FormatError, match="token 0 .* is 50"), val_data(shards) as val:
                Trainer(model, loader, val, run_dir=tmp_path / name, **{**PLAIN, "val_every": 1}).run()
    assert sorted(os.listdir(tmp_path)) == ["bad.bin", "mine"]
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]
    assert run(shards, run_dir=tmp_path / "mine", steps=1)[0].status == "finished"


def test_not_finite_loss_is_told_and_skipped(shards):
    model = make()
    model.params["lnfb"] = np.full(CONFIG.channels, np.inf)
    result, recorder, _ = run(shards, model, steps=2)
    assert result.skipped == 2 and not math.isfinite(recorder.reports[0].loss)
    assert recorder.reports[0].skipped == "loss or gradient norm not finite"


def test_utilisation():
    d12 = GPT2Config.from_descriptor("d12")
    # 6 x (124M weights without the position table) + 6 L C T
    assert flops_per_token(d12, 1024) == 6 * (50304 * 768 + 12 * 12 * 768**2) + 6 * 12 * 768 * 1024
    assert utilisation(d12, 1024, 1e6, 989) == pytest.approx(flops_per_token(d12, 1024) * 1e6 / 989e12)
    assert utilisation(d12, 1024, 1e6, None) is None


class Watch:
    """In place of a GpuMonitor."""

    problem, made, closed = "no GPU watts: a stub", [], 0

    def __init__(self, uuid):
        Watch.made.append(uuid)

    def first(self):
        return self.latest()

    def latest(self):
        return GpuReading(650.5, None, 61)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Watch.closed += 1


def test_gpu_readings_are_told_and_logged(shards, tmp_path, monkeypatch):
    """CLI-15: every N updates, of the model's own device; what is missing there is a note."""
    monkeypatch.setattr(trainer_module, "GpuMonitor", Watch)
    with make() as model, train_data(shards) as loader:
        monkeypatch.setattr(model.library, "backend", "cuda")
        recorder = Recorder()
        trainer = Trainer(model, loader, run_dir=tmp_path, callbacks=[recorder], gpu_every=4, **PLAIN)
        assert trainer.result_lag == 2
        trainer.run()
        assert Watch.made == [model.device_info["uuid"]] and Watch.closed == 1
        assert recorder.notes[0] == Watch.problem
        Trainer(model, loader, gpu_every=0, **PLAIN).run()
        assert len(Watch.made) == 1
    assert [report.step for report in recorder.reports if report.gpu] == [0, 4, 8]
    records = [record for record in read_json_log(tmp_path / "log.jsonl") if record["kind"] == "train"]
    assert [record["step"] for record in records if "power_w" in record] == [0, 4, 8]
    assert (records[4]["power_w"], records[4]["sm_clock_mhz"], records[4]["temperature_c"]) == (650.5, None, 61)


# -- saving and resuming


@pytest.mark.parametrize("extra", [{}, {"total_tokens": 2 * B * T}, {"overfit": True}])
@pytest.mark.parametrize("at", [1, 5])
def test_resume_bit_for_bit(shards, tmp_path, extra, at):
    """RES-04, RES-07: weights, moments, generators, guard, data order, logs."""
    settings = {"checkpoint_every": at, "val_every": 4, "warmup": 2, "final_fraction": 0.1, **extra}
    whole = run(shards, run_dir=tmp_path / "whole", **settings)
    folder = tmp_path / "half"
    shutil.copytree(tmp_path / "whole", folder)
    for step in range(at + 1, 11):  # as if it had been killed after `at`, in the midst of later steps
        for path in folder.glob(f"*_{step:08d}*"):
            path.unlink()
    resumed = run(shards, make("zeros"), run_dir=folder, resume=True, **settings)
    assert resumed[0].first_step == at and resumed[0].step == 10
    assert resumed[2] == whole[2]
    assert (folder / "main.log").read_text() == (tmp_path / "whole" / "main.log").read_text()
    steps = [record["step"] for record in read_json_log(folder / "log.jsonl") if record["kind"] == "train"]
    assert steps == list(range(10))  # PLT-03


def test_resume_of_the_references_run(golden, tmp_path):
    """Steps 11 to 20 of a run that llm.c began."""
    for name in ("model_00000010.bin", "state_00000010_00000.bin"):
        shutil.copy(golden / f"mid_{name}", tmp_path / name)
    (tmp_path / "DONE_00000010").touch()
    shape = {"batch": 4, "seq_len": 64, "device": "cpu"}
    with (
        GPT2.from_checkpoint(tmp_path / "model_00000010.bin", **shape) as model,
        TokenLoader(str(golden / "bytes_train_*.bin"), 4, 64, shuffle=True) as train,
        TokenLoader(golden / "bytes_val_000000.bin", 4, 64) as val,
    ):
        trainer = Trainer(
            model, train, val, run_dir=tmp_path, resume=True, steps=20, lr=1e-3, warmup=2, final_fraction=0.1,
            hyper={"weight_decay": 0.1}, val_every=5, val_batches=5, sample_every=20, sample_tokens=16,
        )  # fmt: skip
        assert trainer.run().step == 20
    found, expected = read_main_log(tmp_path / "main.log"), read_main_log(golden / "mid_main.log")
    assert len(found["trl"]) == 10 and len(found["tel"]) == 3
    np.testing.assert_allclose(found["trl"], expected["trl"][10:], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["tel"], expected["tel"][2:], rtol=1e-4)


def test_guard_survives_a_resume(shards, tmp_path):
    """Its window of 128 losses is no part of llm.c's files."""
    run(shards, run_dir=tmp_path, steps=3)
    model = make("zeros")
    with model, train_data(shards) as loader:
        Trainer(model, loader, resume=True, run_dir=tmp_path, **{**PLAIN, "steps": 9})
        assert model.guard["loss_seen"] == 3 and model.updates == 3


def test_target_already_reached(shards, tmp_path):
    """RES-11: a result of its own, and nothing touched; one more step is exactly one."""
    run(shards, run_dir=tmp_path, steps=10)
    before = (tmp_path / "main.log").read_bytes()
    for target in (5, 10):
        result, recorder, _ = run(shards, run_dir=tmp_path, steps=target, resume=True)
        assert (result.status, result.step, recorder.events) == ("already complete", 10, [])
    assert (tmp_path / "main.log").read_bytes() == before
    result, recorder, _ = run(shards, run_dir=tmp_path, steps=11, resume=True)
    assert result.status == "finished" and recorder.events == [("step", 10), ("saved", 11)]


def test_weights_without_optimizer_state(shards, tmp_path):
    """RES-14."""
    run(shards, run_dir=tmp_path, steps=4)
    (tmp_path / "state_00000004_00000.bin").unlink()
    with pytest.raises(InvalidArgument, match="resume_weights_only"):
        run(shards, run_dir=tmp_path, resume=True)
    result, recorder, state = run(shards, run_dir=tmp_path, resume=True, resume_weights_only=True, steps=6)
    assert result.first_step == 4 and state[-1] == 2  # the fresh optimizer has made two updates
    assert any("fresh optimizer" in note for note in recorder.notes)
    again = run(shards, run_dir=tmp_path, resume=True, steps=8)
    assert again[0].first_step == 6 and again[2][-1] == 4


def test_resume_without_a_checkpoint_begins(shards, tmp_path):
    result, recorder, _ = run(shards, run_dir=tmp_path, resume=True, steps=2)
    assert result.first_step == 0 and "no complete checkpoint" in recorder.notes[0]


def test_resume_says_what_it_passes_over(shards, tmp_path):
    run(shards, run_dir=tmp_path, steps=2, checkpoint_every=1)
    (tmp_path / "model_00000002.bin").unlink()
    _, recorder, _ = run(shards, run_dir=tmp_path, steps=3, resume=True)
    assert "DONE_00000002 passed over: model_00000002.bin is missing" in recorder.notes[0]
    assert recorder.reports[0].step == 1


def test_an_undeclared_set_is_skipped_and_replaced(shards, tmp_path):
    """RES-12: files without their marker, whole or cut, are no checkpoint, and the next one of that step is another."""
    run(shards, run_dir=tmp_path / "whole", steps=4, checkpoint_every=2)
    folder = tmp_path / "half"
    shutil.copytree(tmp_path / "whole", folder)
    (folder / "DONE_00000004").unlink()
    whole = (folder / "model_00000004.bin").read_bytes()
    (folder / "model_00000004.bin").write_bytes(whole[: len(whole) // 2])
    (folder / "state_00000004_00000.bin").unlink()
    result, _, _ = run(shards, make("zeros"), run_dir=folder, steps=4, resume=True)
    assert result.first_step == 2 and find_latest_complete(folder).step == 4
    for path in (tmp_path / "whole").glob("*_00000004*"):
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_resume_of_another_shape(shards, tmp_path):
    run(shards, run_dir=tmp_path, steps=1)
    other = GPT2Config(1, 1, 32, CONFIG.vocab, T)
    with GPT2.from_config(other, batch=B, seq_len=T, device="cpu") as model, train_data(shards) as loader:
        with pytest.raises(InvalidArgument, match="holds GPT2Config.*heads=2.*the model is"):
            Trainer(model, loader, run_dir=tmp_path, resume=True)


def test_damaged_extra_state(shards, tmp_path):
    run(shards, run_dir=tmp_path, steps=1)
    (tmp_path / "extra_00000001.json").write_text('{"updates": 1, "guard": {"loss": []}}')
    with pytest.raises(FormatError, match="extra_00000001.json"):
        run(shards, run_dir=tmp_path, resume=True)


def test_an_existing_run_is_not_overwritten(shards, tmp_path):
    run(shards, run_dir=tmp_path, steps=1)
    with pytest.raises(InvalidArgument, match="already holds a run"):
        run(shards, run_dir=tmp_path)


def test_final_checkpoint_comes_before_optional_work(shards, tmp_path):
    """CKP-01: a callback that raises in the last validation, and a last sample that can't be drawn."""

    class Raises(Callbacks):
        def on_validation(self, step, loss):
            if step:
                raise RuntimeError("no plot today")

        def on_sample(self, step, ids):
            raise OSError("no tokenizer")

    with train_data(shards) as loader, val_data(shards) as val, make() as model:
        settings = {**PLAIN, "steps": 2, "val_every": 2, "sample_every": 2}
        result = Trainer(model, loader, val, callbacks=[Raises()], run_dir=tmp_path, **settings).run()
    assert find_latest_complete(tmp_path).step == 2 and result.status == "finished"
    assert len(result.warnings) == 2 and "no plot today" in result.warnings[0] and "tokenizer" in result.warnings[1]


def test_a_sample_that_fails_is_a_remark(shards, tmp_path):
    """CKP-01, in the midst of the run: with nothing saved yet, it would take all the work with it."""

    class CannotShow(Recorder):
        def on_sample(self, step, ids):
            raise UnicodeEncodeError("ascii", "x", 0, 1, "no such character")

    recorder = CannotShow()
    with train_data(shards) as loader, make() as model:
        result = Trainer(model, loader, callbacks=[recorder], **{**PLAIN, "sample_every": 4}).run()
    assert result.step == 10
    assert [note.split(":")[0] for note in recorder.notes[:2]] == ["no sample at step 4", "no sample at step 8"]


SAVER = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from pyllmc import GPT2, GPT2Config, run_state
from pyllmc.checkpoint import iter_checkpoint, peek_checkpoint
from pyllmc.optimizer_state import LoaderState, peek_state, read_state
from pyllmc.rundir import find_latest_complete, state_name
folder, config = Path(sys.argv[1]), GPT2Config(layers=1, heads=2, channels=64, vocab=9000, context=8)
def save_for_ever(ready):
    model = GPT2.from_config(config, init="zeros", batch=1, seq_len=8, device="cpu")
    step = (find_latest_complete(folder).step or 0) + 1
    while True:
        for kind in (model.params, model.m):
            kind["wpe"] = np.full((8, 64), step)
        run_state.save(folder, step, model, LoaderState(0, step))
        os.write(ready, b"x")
        step += 1
random.seed(1)
reached = 0
for _ in range(25):
    out, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        save_for_ever(ready)
    os.close(ready)
    os.read(out, 1)  # one is complete
    time.sleep(random.random() * 0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(out)
    latest = find_latest_complete(folder)
    assert latest.step > reached, (latest, reached)
    reached = latest.step
    stored = dict(iter_checkpoint(folder / f"model_{reached:08d}.bin"))
    state = read_state(folder / state_name(reached), config)
    assert (stored["wpe"] == reached).all() and state.loader.sample == reached and (state.m == reached).any()
    for path in folder.glob("model_*"):
        peek_checkpoint(path)
    for path in folder.glob("state_*"):
        peek_state(path, config)
    for path in folder.glob("DONE_*"):
        digits = path.name.removeprefix("DONE_")
        names = sorted(p.name for p in folder.glob(f"*_{digits}*") if p.name[0] != ".")
        assert len(names) == 4, names
    for path in folder.glob(f"*_{reached - 1:08d}*"):
        path.unlink()
"""


def test_kill_while_saving(tmp_path):
    """CKP-02: kills at random moments of a saving process; the latest checkpoint is whole each time."""
    done = subprocess.run([sys.executable, "-c", SAVER, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["state_00000010_00000.bin", "model_00000010.bin", "extra_00000010.json", "DONE_00000010"])
def test_interrupt_while_saving(shards, tmp_path, monkeypatch, name):
    """CLI-10: Ctrl-C just before one of the last checkpoint's files appears: it leaves none, the one before is complete."""
    real = os.replace

    def interrupted(source, target):
        if os.path.basename(target) == name:
            signal.raise_signal(signal.SIGINT)
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(shards, run_dir=tmp_path, checkpoint_every=5, steps=10)
    assert find_latest_complete(tmp_path).step == 5
    assert not [file for file in os.listdir(tmp_path) if file.endswith(".tmp") or "00000010" in file]
    monkeypatch.undo()
    assert run(shards, make("zeros"), run_dir=tmp_path, resume=True, steps=11)[0].first_step == 5


@pytest.mark.parametrize("lag", [0, 2])
def test_interrupt_while_training(shards, tmp_path, lag):
    """SIGINT from outside, in the midst of steps: the newest complete checkpoint is one to go on from, and every update
    that was made is in the log, those under way too."""
    with train_data(shards) as loader, make() as model:

        class Presses(Callbacks):
            def on_step(self, report):
                if report.step == 7:
                    signal.raise_signal(signal.SIGINT)

        settings = {**PLAIN, "steps": 100, "checkpoint_every": 5, "run_dir": tmp_path, "result_lag": lag}
        with pytest.raises(KeyboardInterrupt):
            Trainer(model, loader, callbacks=[Presses()], **settings).run()
        assert find_latest_complete(tmp_path).step == 5
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
        assert [row[0] for row in read_main_log(tmp_path / "main.log")["trl"]] == list(range(8 + lag))
    result, _, _ = run(shards, make("zeros"), run_dir=tmp_path, resume=True, steps=9)
    assert result.first_step == 5 and result.step == 9


def test_ctrl_c_while_a_result_is_awaited(shards, tmp_path, monkeypatch):
    """Where it mostly comes, beside a GPU."""
    real, presses = StepHandle.result, [11]

    def interrupted(handle, timeout=None):
        presses[0] -= 1
        if presses[0] == 0:
            signal.raise_signal(signal.SIGINT)
        return real(handle, timeout)

    monkeypatch.setattr(StepHandle, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(shards, run_dir=tmp_path, steps=50, result_lag=2)
    assert [row[0] for row in read_main_log(tmp_path / "main.log")["trl"]] == list(range(13))

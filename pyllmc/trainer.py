"""The training loop: what happens between updates, and in which order."""

import contextlib
import functools
import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from . import flops, options, peaks, run_state, rundir
from .callbacks import StepReport, checked
from .checkpoint_writer import CheckpointWriter
from .errors import InvalidArgument, LlmcError, sentence
from .evaluation import Questions, accuracy
from .feed import Feed
from .monitor import GpuMonitor
from .pruning import prune
from .rundir import JSON_LOG, MAIN_LOG, JsonLog, MainLog, check_unused
from .schedule import Schedule
from .settings import Settings

log = logging.getLogger("pyllmc")


@dataclass
class RunResult:
    """status: "finished", or "already complete" when the resumed run had nothing left to do. step: updates
    done in all. loss, val_loss, accuracy: the last ones, None if there are none. host_share: of the time of all steps,
    the part outside the engine. skipped: updates that were skipped. warnings: what failed after the end."""

    status: str
    first_step: int
    step: int
    loss: float | None = None
    val_loss: float | None = None
    accuracy: float | None = None
    checkpoint: Path | None = None
    skipped: int = 0
    host_share: float | None = None
    warnings: tuple = ()


class Trainer:
    """Trains `model` on the batches of a TokenLoader, whose B and T are the model's.

    val_loader is used for validation only. callbacks: one of Callbacks, or several. The other keywords are the fields
    of Settings. Everything is checked, and a resumed state is loaded, before the constructor returns: then
    first_step, steps and schedule say what run() will do, and peak what utilisation is measured against.
    """

    def __init__(self, model, train_loader, val_loader=None, *, callbacks=(), **settings):
        self.settings = chosen = Settings.checked(settings)
        self.model, self.loader, self.val_loader = model, train_loader, val_loader
        self.callbacks = checked(callbacks)
        for name, loader in (("train_loader", train_loader), ("val_loader", val_loader)):
            if loader is not None and (loader.B, loader.T) != (model.batch, model.seq_len):
                raise InvalidArgument(
                    f"{name} serves B {loader.B}, T {loader.T}; the model takes B {model.batch}, "
                    f"T {model.seq_len}"
                )
        if not model.options.train:
            raise InvalidArgument("a model made with train=0 has no gradients: a trainer needs one made with train=1")
        world = model.options.world
        self.micro_batches = chosen.micro_batches(model.batch, model.seq_len, world)
        self.tokens_per_step = self.micro_batches * model.batch * model.seq_len * world
        self.steps = chosen.steps or max(1, train_loader.num_batches // self.micro_batches)
        lr = model.hyper_default()["learning_rate"] if chosen.lr is None else chosen.lr
        self.schedule = Schedule(chosen.schedule, lr, self.steps, chosen.warmup, chosen.final_fraction)
        on_gpu = model.library.backend != "cpu"
        self.result_lag = chosen.result_lag
        if self.result_lag is None:
            self.result_lag = 0 if not on_gpu else min(2, model.options.results - 1)
        device, kind = model.device_info, options.word_of("precision", model.options.precision)
        self.peak = peaks.peak_of(device, peaks.arithmetic(kind, on_gpu and model.options.tf32), chosen.peak_tflops)
        self._utilisation = flops.utilisation_meter(model.config, model.seq_len, self.peak.tflops)
        self._uuid, self._monitor = device["uuid"], None
        self.first_step, self._notes, self._resumed_at = 0, [], None
        self._questions = chosen.hellaswag and Questions(chosen.hellaswag, model.seq_len, model.config.vocab)
        if self._questions:
            self._notes += self._questions.notes
        if chosen.run_dir is not None:
            self._take_folder(Path(chosen.run_dir))
        self._position = train_loader.state()  # the loader's, after the last batch that was trained on
        self._pending = deque()  # (step, learning rate, handle) of updates whose results weren't read
        self._mark = self._engine_s = 0.0
        self._step_s = self._host_s = 0.0
        self._result = RunResult("finished", self.first_step, self.first_step)

    def run(self):
        """Train to the last step and return a RunResult.

        However it ends, no thread is left, every slot is given back, and the train loader stands where the
        training got to. What was due is on disk before anything optional (the last validation and sample) is
        tried; a failure there becomes a warning.
        """
        if self.first_step >= self.steps:
            self._result.status = "already complete"
            return self._result
        with contextlib.ExitStack() as stack:
            self._open(stack)
            stack.push(lambda kind, error, _: self._tell("on_end", error))
            stack.push(self._end_saving)
            stack.push(self._log_what_was_done)
            self._tell("on_start", self)
            self._tell_notes()
            self._mark = time.perf_counter()
            for step in range(self.first_step, self.steps):
                self._between(step)
                self._advance(step)
                if step == self.first_step:
                    self._notes += self.model.notes()
                    self._tell_notes()
            self._read_results(0)
            self._finish()
        if self._step_s:
            self._result.host_share = self._host_s / self._step_s
        return self._result

    # -- start and end -------------------------------------------------------------------------------

    def _take_folder(self, folder):
        if not self.settings.resume:
            check_unused(folder)
            return
        found = run_state.restore(folder, self.model, self.settings.resume_weights_only)
        if found is None:
            self._notes.append(f"{folder} has no complete checkpoint: the run starts from its beginning")
            return
        self.first_step = self._resumed_at = found.step
        self._notes += [*found.notes, f"resumed from step {found.step}"]
        if found.loader is not None:
            try:
                self.loader.restore(found.loader)
            except InvalidArgument as error:
                raise InvalidArgument(f"{folder}: {error}; or {run_state.WEIGHTS_ONLY}") from None

    def _open(self, stack):
        self._main_log = self._json_log = self._writer = None
        if self.settings.run_dir is not None:
            folder = Path(self.settings.run_dir)
            is_new = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            stack.push(functools.partial(self._forget_false_start, folder, is_new))
            self._main_log = stack.enter_context(contextlib.closing(MainLog(folder, self._resumed_at)))
            self._json_log = stack.enter_context(
                contextlib.closing(JsonLog(folder / JSON_LOG, self._resumed_at))
            )
            if self._resumed_at is not None:
                rundir.sweep(folder)
                rundir.finish_removals(folder)
            self._writer = CheckpointWriter(folder, self.model)
        if self.model.library.backend != "cpu" and self.settings.gpu_every:
            self._monitor = stack.enter_context(GpuMonitor(self._uuid))
            self._monitor.first()
            if self._monitor.problem:
                self._notes.append(self._monitor.problem)
        stack.callback(self._restore_loader)
        prefetch_host = self.model.options.prefetch & self.model.constant("LLMC_PREFETCH_HOST")
        repeat = self.micro_batches if self.settings.overfit else 0
        self._feed = stack.enter_context(
            Feed(self.model, self.loader, ahead=bool(prefetch_host), repeat=repeat, late=self.model.library.backend != "cpu")
        )

    def _forget_false_start(self, folder, is_new, failed, *_):
        """A new run that fails before its first update leaves no logs, so the corrected command finds no run."""
        if not failed or self._resumed_at is not None or self._result.step > self.first_step:
            return
        for name in (MAIN_LOG, JSON_LOG):
            (folder / name).unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):  # something else has been put there
                folder.rmdir()

    def _restore_loader(self):
        with contextlib.suppress(LlmcError):  # its file may be gone: then the next use says so
            self.loader.restore(self._position)

    def _finish(self):
        result = self._result
        result.step = self.steps
        if self._writer:
            self._writer.save_now(self.steps, self._position)
            self._tell_saved()
        warned = []
        optional = (("validation", self.settings.val_every, self._validate),
                    ("evaluation", self._questions, self._evaluate),
                    ("sample", self.settings.sample_every, self._sample))  # fmt: skip
        for what, wanted, action in optional:
            if not wanted:
                continue
            try:
                action(self.steps)
            except Exception as error:
                warned.append(f"the last {what} failed: {type(error).__name__}: {sentence(error)}")
        result.warnings = tuple(warned)
        self._notes += [*warned, *self.model.notes()]
        self._tell_notes()

    # -- one step and what comes before it -----------------------------------------------------------

    def _between(self, step):
        """What is due before update `step`. The checkpoint comes first: the rest may fail."""
        self._tell_saved()
        due = [
            (self.settings.checkpoint_every, self._save, self._writer and step > self.first_step),
            (self.settings.val_every, self._validate, self.val_loader is not None),
            (self.settings.val_every, self._evaluate, self._questions and step > 0),
            (self.settings.sample_every, self._try_sample, step > self.first_step),
        ]
        actions = [action for every, action, possible in due if every and possible and step % every == 0]
        if not actions:
            return
        self._read_results(0)
        for action in actions:
            action(step)
        self._mark, self._engine_s = time.perf_counter(), 0.0

    def _advance(self, step):
        lr = self.schedule(step)
        position = None
        for i in range(self.micro_batches):
            slot, position = self._feed.get()
            began = time.perf_counter()
            self.model.micro_step(slot, i, self.micro_batches)
            self._engine_s += time.perf_counter() - began
        began = time.perf_counter()
        handle = self.model.update(lr=lr, **self.settings.hyper)
        self._engine_s += time.perf_counter() - began
        self._feed.refill()
        self._position = position
        self._pending.append((step, lr, handle))
        self._read_results(self.result_lag)

    def _log_what_was_done(self, failed, *_):
        """A run that ends early has made updates whose results weren't read yet: they are logged too, and not told."""
        if failed:
            with contextlib.suppress(Exception):  # why it ended is what counts
                self._read_results(0, tell=False)

    def _read_results(self, leave, tell=True):
        """Read the oldest results until `leave` are left unread."""
        while len(self._pending) > leave:
            step, lr, handle = self._pending[0]
            began = time.perf_counter()
            found = handle.result()
            self._pending.popleft()  # not before: Ctrl-C comes while it waits
            now = time.perf_counter()
            seconds, engine = now - self._mark, self._engine_s + now - began
            self._mark, self._engine_s = now, 0.0
            # Results that were already waiting, as when the last ones are drained, come in no time at all:
            # the device's own clock says what their steps took.
            if found.device_ms > 1e3 * seconds:
                seconds = found.device_ms / 1e3
            self._report(step, lr, found, seconds, max(seconds - engine, 0.0), tell)

    def _report(self, step, lr, found, seconds, host, tell):
        self._step_s += seconds
        self._host_s += host
        speed = self.tokens_per_step / seconds if seconds else math.nan
        due = self._monitor is not None and step % self.settings.gpu_every == 0
        gpu = self._monitor.latest() if due else None
        mfu = self._utilisation(speed / self.model.options.world)
        report = StepReport(
            step, found.loss, found.grad_norm, lr, seconds * 1e3, speed, host * 1e3, mfu, found.skipped, gpu
        )
        self._result.loss, self._result.step = found.loss, step + 1
        self._result.skipped += found.skipped is not None
        if self._main_log:
            self._main_log.train(step, found.loss, lr, found.grad_norm)
            self._json_log.write(
                step, kind="train", loss=found.loss, norm=found.grad_norm, lr=lr, ms=report.ms,
                tok_s=report.tok_s, host_ms=report.host_ms, device_ms=found.device_ms, mfu=mfu, skipped=found.skipped, time=time.time(),
                **({} if gpu is None else gpu._asdict()),
            )  # fmt: skip
        if tell:
            self._tell("on_step", report)

    def _validate(self, step):
        if self.val_loader is None:
            return
        loader, count = self.val_loader, self.settings.val_batches
        count = loader.num_batches if count < 0 else min(count, loader.num_batches)
        loader.reset()
        losses = []
        with Feed(self.model, loader, ahead=False) as feed:
            for _ in range(count):
                slot, _ = feed.get()
                losses.append(self.model.eval_slot(slot))
        mean = math.fsum(losses) / count
        self._result.val_loss = mean
        if self._main_log:
            self._main_log.validation(step, mean)
            self._json_log.write(step, kind="val", val_loss=mean, time=time.time())
        self._tell("on_validation", step, mean)

    def _evaluate(self, step):
        share = {"rank": self.model.options.rank, "world": self.model.options.world}
        found = accuracy(self.model, self._questions, **share)
        self._result.accuracy = found.accuracy
        if self._main_log:
            self._main_log.evaluation(step, found.accuracy)
            self._json_log.write(step, kind="eval", **found._asdict(), time=time.time())
        self._tell("on_evaluation", step, found.accuracy)

    def _sample(self, step):
        chosen = self.settings
        prompt = chosen.prompt or (self.model.config.vocab - 1,)
        self._tell("on_sample", step, self.model.generate(prompt, chosen.sample_tokens, **chosen.sample))

    def _try_sample(self, step):
        """A sample is for looking at: a run doesn't end because one can't be drawn or shown."""
        try:
            self._sample(step)
        except Exception as error:
            self._notes.append(f"no sample at step {step}: {type(error).__name__}: {sentence(error)}")
            self._tell_notes()

    def _save(self, step):
        self._writer.save(step, self._position)
        self._tell_saved()

    def _tell_saved(self):
        """Each checkpoint passes here once, when it is complete: some steps after its own, as it is written beside them."""
        if not self._writer:
            return
        for saved in self._writer.complete():
            self._result.checkpoint = saved.path
            self._json_log.write(
                saved.step, kind="checkpoint", held_ms=saved.held_ms, write_s=saved.write_s, time=time.time()
            )
            self._tell("on_checkpoint", saved.step, saved.path)
            self._prune(saved.step)
        self._notes += self._writer.notes()
        self._tell_notes()

    def _end_saving(self, exception, *_):
        if self._writer:
            self._writer.close(exception)
        with contextlib.suppress(Exception):  # the run has ended already, with an exception of its own
            self._tell_saved()

    def _prune(self, step):
        """Older checkpoints that needn't stay, now that the one of `step` is complete."""
        chosen = self.settings
        try:
            prune(chosen.run_dir, step, chosen.keep, chosen.major_every, self.model.options.world)
        except OSError as error:
            self._notes.append(f"old checkpoints could not be removed: {sentence(error)}")

    # -- telling -------------------------------------------------------------------------------------

    def _tell(self, event, *details):
        for listener in self.callbacks:
            getattr(listener, event)(*details)

    def _tell_notes(self):
        notes, self._notes = self._notes, []
        for text in notes:
            if not self.callbacks:
                log.warning("%s", text)
            self._tell("on_note", text)

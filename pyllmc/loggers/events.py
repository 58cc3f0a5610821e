"""What a trainer tells, as numbers and texts for a backend."""

import contextlib
import dataclasses
import math
import os
import warnings
from pathlib import Path
from typing import NamedTuple

from .. import options
from ..callbacks import Callbacks
from ..errors import sentence


class RunInfo(NamedTuple):
    """folder: of the run, None where it writes none. first_step: of the updates to come, 0-based. resumed: whether the
    run goes on from earlier. config: {name: bool, number or str}, flat, of the model and the settings."""

    folder: Path | None
    first_step: int
    resumed: bool
    config: dict


class Logger(Callbacks):
    """Callbacks that log to a backend.

    A backend that fails while training (a full disk, no network) gets nothing more: one remark goes to `tell`, and
    training goes on. tokenizer: to log samples as text; None: as ids.
    """

    def __init__(self, backend, tokenizer=None, tell=warnings.warn):
        self._backend, self._tokenizer, self._tell, self._open = backend, tokenizer, tell, False

    def on_start(self, trainer):
        settings = trainer.settings
        folder = None if settings.run_dir is None else Path(settings.run_dir)
        self._backend.open(RunInfo(folder, trainer.first_step, settings.resume, config_of(trainer)))
        self._open = True

    def on_step(self, report):
        found = {
            "train/loss": report.loss, "train/grad_norm": report.norm, "train/lr": report.lr,
            "train/skipped": float(report.skipped is not None), "speed/ms": report.ms, "speed/tok_s": report.tok_s,
            "speed/host_ms": report.host_ms, "speed/mfu": report.mfu,
        }  # fmt: skip
        if report.gpu is not None:
            found |= {f"gpu/{name}": value for name, value in report.gpu._asdict().items()}
        self._scalars(report.step, found)

    def on_validation(self, step, loss):
        self._scalars(step, {"val/loss": loss})

    def on_evaluation(self, step, accuracy):
        self._scalars(step, {"val/hellaswag_accuracy": accuracy})

    def on_sample(self, step, ids):
        self._guarded(self._text, step, ids)

    def on_end(self, error):
        self._guarded(self._backend.close, error)
        self._open = False

    def _scalars(self, step, found):
        self._guarded(self._backend.scalars, step, {k: float(v) for k, v in found.items() if v is not None})

    def _text(self, step, ids):
        known = self._tokenizer is not None and max(ids, default=0) < self._tokenizer.n_vocab
        self._backend.text(step, "sample", self._tokenizer.decode(ids) if known else " ".join(map(str, ids)))

    def _guarded(self, action, *arguments):
        if not self._open:
            return
        try:
            action(*arguments)
        except Exception as error:
            self._open = False
            with contextlib.suppress(Exception):
                self._backend.close(error)
            self._tell(f"{self._backend.name} gets nothing more of this run: {type(error).__name__}: {sentence(error)}")


def config_of(trainer):
    """The flat configuration of a run; None is left out, and what is no number is text."""
    model, settings = trainer.model, dataclasses.asdict(trainer.settings)
    found = {
        **dataclasses.asdict(model.config), "parameters": model.config.num_params, "batch": model.batch,
        "seq_len": model.seq_len, "precision": options.word_of("precision", model.options.precision),
        "device": f"{model.device}: {model.device_info['name']}", **settings, **model.hyper_default(), **settings["hyper"],
        "steps": trainer.steps, "lr": trainer.schedule.lr, "tokens_per_step": trainer.tokens_per_step,
    }  # fmt: skip
    for name in ("hyper", "sample", "learning_rate", "step", "resume", "resume_weights_only"):
        found.pop(name, None)
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value):
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return value if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)) else str(value)

"""What a run has logged, as arrays: from this package's log.jsonl, from llm.c's main.log or what its trainer printed."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import FormatError, InvalidArgument
from .log_rows import Rows
from .rundir import JSON_LOG, MAIN_LOG
from .trainer_output import STEP, records

TRAINED = ("step", "loss", "lr", "norm", "ms", "tok_s", "skipped")
BLOCK = 1 << 20  # bytes, after which a line should have been understood, and between two signs of progress


@dataclass
class History:
    """One run. name: for people. source: the name of the log.

    Of the training steps, all of one length and in order of steps: step (counted from 0), loss in nats per
    token, lr, norm of the gradient, ms and tok_s (NaN where the log has none), skipped (bool: the weights
    were left alone). val_step, val_loss: validation before that step. eval_step, accuracy: HellaSwag's, 0 to 1.
    resumed_at: steps at which the run went back and logged steps again. notes: sentences about the log.
    """

    name: str
    source: str
    step: np.ndarray
    loss: np.ndarray
    lr: np.ndarray
    norm: np.ndarray
    ms: np.ndarray
    tok_s: np.ndarray
    skipped: np.ndarray
    val_step: np.ndarray
    val_loss: np.ndarray
    eval_step: np.ndarray
    accuracy: np.ndarray
    resumed_at: np.ndarray
    notes: list

    @classmethod
    def from_records(cls, records, name="", source=JSON_LOG):
        """From dictionaries as log.jsonl holds them, in the order in which they were written."""
        rows = Rows()
        for record in records:
            rows.add_record(record)
        return cls(name, **rows.fields(source))


def find_logs(run):
    """The logs of a run folder, the one to prefer first, or the log file itself.

    Raises InvalidArgument for a folder without a log, and for what isn't there.
    """
    path = Path(run)
    if not path.exists():
        raise InvalidArgument(f"{run}: no such file or folder; expected a run folder or a log")
    if not path.is_dir():
        return [path]
    found = [path / name for name in (JSON_LOG, MAIN_LOG) if (path / name).is_file()]
    if not found:
        raise InvalidArgument(f"no run in the folder {os.fspath(run)}: looked for {JSON_LOG} and {MAIN_LOG}")
    return found


def read_history(run, name=None, progress=None):
    """The History of a run folder (its log.jsonl, else its main.log; HellaSwag's accuracy from either, and from main.log
    also the steps before the first in log.jsonl, where llm.c's trainer began the run) or of one log file.

    Lines of another form and a last one that a crash cut off are passed over, and counted in the notes.
    progress: called with the path of a log, it gives a context of a function that takes the number of bytes read.
    Raises InvalidArgument for a folder without a log, FormatError for another kind of file, OSError for one that
    can't be read.
    """
    best, *others = find_logs(run)
    history = read_log(best, name, progress)
    begun = history.step.size and history.step[0] == 0
    for other in () if begun and history.eval_step.size else others:
        second = read_log(other, name, progress)
        if not history.step.size and not history.val_step.size:
            return second
        if not history.eval_step.size:
            history.eval_step, history.accuracy = second.eval_step, second.accuracy
        if history.step.size:
            put_before(history, second)
    return history


def put_before(history, other):
    """Complete `history` by what `other` tells of the steps before its first."""
    first = history.step[0]
    for steps, *columns in (TRAINED, ("val_step", "val_loss"), ("eval_step", "accuracy")):
        earlier = getattr(other, steps) < first
        later = getattr(history, steps) >= first
        for column in (steps, *columns):
            parts = getattr(other, column)[earlier], getattr(history, column)[later]
            setattr(history, column, np.concatenate(parts))


def name_of(path):
    """A log is named after its folder if it has the usual name."""
    return path.resolve().parent.name if path.name in (JSON_LOG, MAIN_LOG) else path.stem


def read_log(path, name=None, progress=None):
    """The History in one file, whose lines tell by themselves of which kind they are."""
    with progress(path) if progress else contextlib.nullcontext() as advance:
        rows = read_rows(path, advance)
    if rows.odd and not rows.understood and path.name not in (JSON_LOG, MAIN_LOG):
        rows = printed_rows(path)
        if not rows.understood:
            raise FormatError(
                f"{os.fspath(path)}: expected a {JSON_LOG}, a {MAIN_LOG} or what llm.c's trainer printed; no line has their form"
            )
    return History(name or name_of(path), **rows.fields(path.name))


def printed_rows(path):
    """The Rows of what llm.c's trainer printed; lines that don't tell of training are no fault there."""
    rows = Rows()
    with open(path, encoding="utf-8", errors="replace") as file:
        if STEP.search(file.read(BLOCK)):
            file.seek(0)
            for record in records(file):
                rows.add_record(record)
    return rows


def read_rows(path, advance=None):
    rows, read, told = Rows(), 0, 0
    with open(path, "rb") as file:
        for raw in file:
            read += len(raw)
            if not raw.endswith(b"\n"):
                rows.cut = True
                break
            rows.add_line(raw.decode("utf-8", "replace").rstrip("\r\n"))
            if read - told > BLOCK:
                if not rows.understood:
                    break
                if advance:
                    advance(read - told)
                told = read
    return rows

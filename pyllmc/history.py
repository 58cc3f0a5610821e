"""What a run has logged, as arrays: from this package's log.jsonl or from llm.c's main.log."""

import contextlib
import json
import os
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import FormatError, InvalidArgument
from .rundir import JSON_LOG, LINE, MAIN_LOG

COLUMNS = ("loss", "lr", "norm", "ms", "tok_s")
LARGEST_STEP = 2**53  # beyond it a float64 can't count, nor can anybody wait
BLOCK = 1 << 20  # bytes, after which a line should have been understood, and between two signs of progress
NOTHING_LOGGED = np.zeros(0)


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
        return rows.history(name, source)


def find_logs(run):
    """The logs of a run folder, the one to prefer first, or the log file itself.

    Raises InvalidArgument for a folder without a log, OSError for what isn't there.
    """
    path = Path(run)
    if not path.is_dir():
        path.stat()
        return [path]
    found = [path / name for name in (JSON_LOG, MAIN_LOG) if (path / name).is_file()]
    if not found:
        raise InvalidArgument(f"no run in the folder {os.fspath(run)}: looked for {JSON_LOG} and {MAIN_LOG}")
    return found


def read_history(run, name=None, progress=None):
    """The History of a run folder (its log.jsonl, else its main.log; HellaSwag's accuracy from either) or of one
    log file.

    Lines of another form and a last one that a crash cut off are passed over, and counted in the notes.
    progress: called with the path of a log, it gives a context of a function that takes the number of bytes read.
    Raises InvalidArgument for a folder without a log, FormatError for another kind of file, OSError for one that
    can't be read.
    """
    best, *others = find_logs(run)
    history = read_log(best, name, progress)
    for other in () if history.eval_step.size else others:
        second = read_log(other, name, progress)
        if not history.step.size and not history.val_step.size:
            return second
        history.eval_step, history.accuracy = second.eval_step, second.accuracy
    return history


def name_of(path):
    """A log is named after its folder if it has the usual name."""
    return path.resolve().parent.name if path.name in (JSON_LOG, MAIN_LOG) else path.stem


def read_log(path, name=None, progress=None):
    """The History in one file, whose lines tell by themselves of which kind they are."""
    with progress(path) if progress else contextlib.nullcontext() as advance:
        rows = read_rows(path, advance)
    if rows.odd and not rows.understood and path.name not in (JSON_LOG, MAIN_LOG):
        raise FormatError(f"{os.fspath(path)}: neither a {JSON_LOG} nor a {MAIN_LOG} (no line has their form)")
    return rows.history(name or name_of(path), path.name)


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


class Rows:
    """Collects the lines of a log in their order."""

    def __init__(self):
        self._train = {column: array("d") for column in ("at", "step", *COLUMNS, "skipped")}
        self._val, self._eval = (tuple(array("d") for _ in ("at", "step", "value")) for _ in range(2))
        self._at = self.odd = 0
        self.cut = False

    @property
    def understood(self):
        return self._at - self.odd

    def add_line(self, line):
        if line.startswith("{"):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            self.add_record(record)
            return
        found = LINE.fullmatch(line)
        if not found:
            self._at += 1
            self.odd += 1
            return
        step, kind, value, loss, lr, norm = found.groups()
        name = {"tel": "val", "eval": "eval", None: "train"}[kind]
        self.add_record({"step": int(step), "kind": name, "val_loss": _float(value), "accuracy": _float(value),
                         "loss": _float(loss), "lr": _float(lr), "norm": _float(norm)})  # fmt: skip

    def add_record(self, record):
        """A dictionary; anything else, or one without a step, is counted as odd."""
        self._at += 1
        step = record.get("step") if isinstance(record, dict) else None
        kind = record.get("kind") if type(step) is int and 0 <= step < LARGEST_STEP else None
        if kind == "train":
            train = self._train
            train["at"].append(self._at)
            train["step"].append(step)
            for column in COLUMNS:
                train[column].append(_number(record.get(column)))
            train["skipped"].append(record.get("skipped") not in (None, False))
        elif kind == "val" or kind == "eval":
            rows, value = (self._val, "val_loss") if kind == "val" else (self._eval, "accuracy")
            for column, item in zip(rows, (self._at, step, _number(record.get(value))), strict=True):
                column.append(item)
        elif not isinstance(kind, str):  # of a kind that newer versions know is none of our business
            self.odd += 1

    def history(self, name, source):
        train = {column: np.array(values) for column, values in self._train.items()}
        notes = []
        if self.odd:
            notes.append(f"{count(self.odd, 'line')} of another form passed over in {source}")
        if self.cut:
            notes.append(f"the last line of {source} is cut off")
        kept, resumed = latest(train["step"], np.column_stack([train[column] for column in COLUMNS]))
        if resumed is None:
            notes.append(f"the steps in {source} are out of order: sorted, of a repeated one the last")
            resumed, after = NOTHING_LOGGED, None
        else:
            after = train["at"], train["step"]
        if resumed.size:
            where = ", ".join(f"{step:.0f}" for step in resumed[:5]) + (", ..." if resumed.size > 5 else "")
            again = count(train["step"].size - kept.size, "value")
            notes.append(f"resumed at {where}: {again} logged before that replaced")
        elif kept.size < train["step"].size and after:
            notes.append(f"{count(train['step'].size - kept.size, 'repeated line')} in {source} passed over")
        val, val_loss = _rows(self._val, after)
        eval_step, accuracy = _rows(self._eval, after)
        columns = {column: train[column][kept] for column in ("step", *COLUMNS)}
        return History(name, source, **columns, skipped=train["skipped"][kept] > 0, val_step=val, val_loss=val_loss,
                       eval_step=eval_step, accuracy=accuracy, resumed_at=resumed, notes=notes)  # fmt: skip


def latest(steps, values):
    """(indices of the rows that hold, steps at which the run was resumed) of steps in the order of the file.

    A resumed run goes back to a step that was logged already; from there on what was logged before is void,
    even where the run hasn't got so far again. Where steps go back without such a repetition the file is in
    disorder, and the second result None: then rows are sorted, of repeated ones the last.
    """
    if steps.size == 0:
        return np.zeros(0, int), NOTHING_LOGGED
    _, first, which = np.unique(steps, return_index=True, return_inverse=True)
    back = np.flatnonzero(np.diff(steps) < 0) + 1
    if np.any(first[which[back]] == back):
        _, from_end = np.unique(steps[::-1], return_index=True)
        return steps.size - 1 - from_end, None
    kept = np.flatnonzero(steps < _least_from(steps)[1:])
    # A run that had done a single step since its checkpoint repeats just that one; a line that is there twice
    # differs in nothing.
    same = np.flatnonzero(np.diff(steps) == 0) + 1
    differs = (values[same] != values[same - 1]) & ~(np.isnan(values[same]) & np.isnan(values[same - 1]))
    return kept, np.unique(steps[np.concatenate([back, same[differs.any(axis=1)]])])


def _rows(rows, after):
    """(steps, values) of validations, by the same rules; after: (positions, steps) of the training rows in the
    file, whose going back voids later validations too."""
    at, steps, values = (np.array(column) for column in rows)
    if steps.size == 0:
        return steps, values
    if after is None:
        _, from_end = np.unique(steps[::-1], return_index=True)
        kept = steps.size - 1 - from_end
    else:
        trained = _least_from(after[1])[np.searchsorted(after[0], at)]
        kept = np.flatnonzero((steps < _least_from(steps)[1:]) & (steps <= trained))
    return steps[kept], values[kept]


def _least_from(steps):
    """The smallest of steps[i:] for every i, infinity for the empty end."""
    return np.append(np.minimum.accumulate(steps[::-1])[::-1], np.inf)


def _number(value):
    """A JSON value as float64: NaN unless it is a number."""
    if type(value) is float:
        return value
    if type(value) is not int:
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _float(text):
    return np.nan if text is None else float(text)


def count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""The lines of a log in the order in which they were written, and which of them hold after a run was resumed."""

import json

import numpy as np

from .console import count
from .rundir import LINE

COLUMNS = ("loss", "lr", "norm", "ms", "tok_s")
TRAIN_ROW = ("at", "step", *COLUMNS, "skipped")
LARGEST = float(np.finfo(np.float32).max)  # what is beyond has overflowed where it came from: it counts as infinite
LARGEST_STEP = 2**53  # beyond it a float64 can't count, nor can anybody wait
NONE = np.zeros(0)


class Table:
    """Rows of a fixed number of values as float64: NaN for None and for what is no number. Kept in blocks, for a
    million rows as Python objects would be large."""

    BLOCK = 4096  # rows

    def __init__(self, width):
        self._width, self._blocks, self._rows = width, [], []

    def append(self, row):
        self._rows.append(row)
        if len(self._rows) == self.BLOCK:
            self._pack()

    def columns(self):
        self._pack()
        return np.ascontiguousarray(np.concatenate([np.zeros((0, self._width)), *self._blocks]).T)

    def _pack(self):
        try:
            block = np.array(self._rows, np.float64)
        except (ValueError, TypeError, OverflowError):  # rare, and slower
            block = np.array([[_number(value) for value in row] for row in self._rows], np.float64)
        block[np.abs(block) > LARGEST] = np.inf
        self._blocks.append(block.reshape(-1, self._width))
        self._rows = []


class Rows:
    """Collects the lines of a log in their order. understood, odd: numbers of lines. cut: the last has no end."""

    def __init__(self):
        self._train, self._val, self._eval = Table(len(TRAIN_ROW)), Table(3), Table(3)
        self.understood = self.odd = 0
        self.cut = False

    def add_line(self, line):
        if line.startswith("{"):
            try:
                return self.add_record(json.loads(line))
            except (ValueError, RecursionError):
                pass
        elif found := LINE.fullmatch(line):
            self.understood += 1
            step, kind, value, loss, lr, norm = found.groups()
            if kind:
                row = self.understood, int(step), float(value)
                return (self._val if kind == "tel" else self._eval).append(row)
            return self._train.append((self.understood, int(step), float(loss), float(lr), float(norm), None, None, 0))
        self.odd += 1

    def add_record(self, record):
        """A dictionary; one without a step is odd, and so is anything else."""
        get = record.get if isinstance(record, dict) else {}.get
        step, kind = get("step"), get("kind")
        if type(step) is not int or not 0 <= step < LARGEST_STEP or type(kind) is not str:
            self.odd += 1
            return
        self.understood += 1
        if kind == "train":
            self._train.append((self.understood, step, get("loss"), get("lr"), get("norm"), get("ms"), get("tok_s"),
                                bool(get("skipped"))))  # fmt: skip
        elif kind == "val":
            self._val.append((self.understood, step, get("val_loss")))
        elif kind == "eval":
            self._eval.append((self.understood, step, get("accuracy")))

    def fields(self, source):
        """The fields of a History but for its name. source: what the notes call the log."""
        train = dict(zip(TRAIN_ROW, self._train.columns(), strict=True))
        notes = []
        if self.odd:
            notes.append(f"{count(self.odd, 'line')} of another form passed over in {source}")
        if self.cut:
            notes.append(f"the last line of {source} is cut off")
        kept, resumed = latest(train["step"], np.column_stack([train[column] for column in COLUMNS]))
        if resumed is None:
            notes.append(f"the steps in {source} are out of order: sorted, of a repeated one the last")
            resumed, after = NONE, None
        else:
            after = train["at"], train["step"]
        if resumed.size:
            where = ", ".join(f"{step:.0f}" for step in resumed[:5]) + (", ..." if resumed.size > 5 else "")
            void = count(train["step"].size - kept.size, "earlier step")
            notes.append(f"resumed at {where}: {void} replaced")
        elif kept.size < train["step"].size and after:
            notes.append(f"{count(train['step'].size - kept.size, 'repeated line')} in {source} passed over")
        val, val_loss = _rows(self._val, after)
        eval_step, accuracy = _rows(self._eval, after)
        columns = {column: train[column][kept] for column in ("step", *COLUMNS)}
        return {
            "source": source, **columns, "skipped": train["skipped"][kept] > 0, "val_step": val, "val_loss": val_loss,
            "eval_step": eval_step, "accuracy": accuracy, "resumed_at": resumed, "notes": notes,
        }  # fmt: skip


def latest(steps, values):
    """(indices of the rows that hold, steps at which the run was resumed) of steps in the order of the file.

    A resumed run goes back to a step that was logged already; from there on what was logged before is void,
    even where the run hasn't got so far again. Where steps go back without such a repetition the file is in
    disorder, and the second result None: then rows are sorted, of repeated ones the last.
    """
    if steps.size == 0:
        return np.zeros(0, int), NONE
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
    at, steps, values = rows.columns()
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
    """A value of JSON as float64: NaN unless it is a number, infinity where it is too large for one."""
    if not isinstance(value, (int, float)):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.inf

"""The files of a run folder: llm.c's names, which checkpoint to resume, and the logs."""

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from .atomic import atomic_write, sync_folder
from .checkpoint import peek_checkpoint
from .errors import FormatError, InvalidArgument, sentence
from .optimizer_state import peek_state

MAIN_LOG, JSON_LOG = "main.log", "log.jsonl"
RUN_OPTIONS = "run.toml"
TOKENIZER = "tokenizer.bin"  # the vocabulary of the data, in llm.c's format, where its size doesn't tell
MARKER = re.compile(r"DONE_(\d{8,})")
REMOVING = ".removing_"  # and the step: what a marker is called while its checkpoint is deleted


def model_name(step):
    return f"model_{step:08d}.bin"


def state_name(step, rank=0):
    return f"state_{step:08d}_{rank:05d}.bin"


def extra_name(step):
    return f"extra_{step:08d}.json"


def done_name(step):
    return f"DONE_{step:08d}"


def mark_complete(folder, step):
    """Declare the checkpoint of `step` complete. Call it last, when the files of all ranks are on disk."""
    with atomic_write(Path(folder) / done_name(step)):
        pass


def remove_checkpoint(folder, step):
    """Delete a checkpoint, its marker first: what a kill leaves behind is never taken for complete.

    The marker becomes a note that the rest is to go, which finish_removals() reads after a kill.
    """
    folder = Path(folder)
    note = folder / f"{REMOVING}{step:08d}"
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder / done_name(step), note)
    sync_folder(folder)
    _remove_files(folder, step)
    note.unlink(missing_ok=True)


def finish_removals(folder):
    """Delete what removals that were cut short have left in `folder`."""
    for note in Path(folder).glob(f"{REMOVING}*"):
        digits = note.name.removeprefix(REMOVING)
        # a marker beside the note: the run has come by this step again
        if digits.isdecimal() and not (note.parent / done_name(int(digits))).exists():
            _remove_files(note.parent, int(digits))
        note.unlink(missing_ok=True)


def _remove_files(folder, step):
    for path in (folder / model_name(step), folder / extra_name(step), *folder.glob(f"state_{step:08d}_*.bin")):
        path.unlink(missing_ok=True)


def sweep(folder, step=None):
    """Delete the hidden temporary files that killed saves left behind, of one step or of all."""
    which = "*" if step is None else f"{step:08d}*"
    for kind in ("model", "state", "extra", "DONE"):
        for path in Path(folder).glob(f".{kind}_{which}.tmp"):
            path.unlink(missing_ok=True)


def check_unused(folder):
    """Raise InvalidArgument when `folder` already holds a run, which a new one would damage, or is a file."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"{folder} is a file, expected a folder for the run (-o)")
    for pattern in (MAIN_LOG, JSON_LOG, RUN_OPTIONS, "model_*.bin", "state_*.bin", "DONE_*"):
        found = next(folder.glob(pattern), None)
        if found:
            raise InvalidArgument(
                f"{folder} already holds a run ({found.name}): resume it (-y 1), or name another folder (-o)"
            )


class Latest(NamedTuple):
    """step: the newest complete checkpoint, or None. skipped: [(marker name, reason)], newest first."""

    step: int | None
    skipped: list


def find_latest_complete(folder, world=1):
    """The newest step whose marker, model and optimizer states of all `world` ranks are there and whole."""
    steps, stray = _marked_steps(folder)
    skipped = [(name, "not a marker: expected DONE_ and the step in 8 digits") for name in stray]
    for step in steps:
        reason = _what_is_missing(Path(folder), step, world)
        if reason is None:
            return Latest(step, skipped)
        skipped.append((done_name(step), reason))
    return Latest(None, skipped)


def complete_steps(folder, world=1):
    """Every such step, newest first."""
    return [step for step in _marked_steps(folder)[0] if _what_is_missing(Path(folder), step, world) is None]


def _marked_steps(folder):
    """(steps that have a marker, newest first; names that only look like one)."""
    steps, stray = [], []
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
        found = MARKER.fullmatch(name)
        if found and name == done_name(int(found[1])):
            steps.append(int(found[1]))
        elif name.startswith("DONE_"):
            stray.append(name)
    return sorted(steps, reverse=True), stray


def _what_is_missing(folder, step, world):
    try:
        config, _ = peek_checkpoint(folder / model_name(step))
        for rank in range(world):
            path = folder / state_name(step, rank)
            head = peek_state(path, config)
            for name, found, wanted in (("step", head.step, step), ("rank", head.rank, rank),
                                        ("number of ranks", head.world, world)):  # fmt: skip
                if found != wanted:
                    return f"{path.name}: its {name} is {found}, expected {wanted}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (FormatError, OSError) as error:
        return sentence(error)
    return None


# One line of main.log: what is measured, and the named numbers after it.
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf))"
LINE = re.compile(rf"s:(\d{{1,15}}) (?:(tel|eval):{NUMBER}|trl:{NUMBER} lr:{NUMBER} norm:{NUMBER})", re.ASCII)


class MainLog:
    """Writes llm.c's main.log. Each line is on disk for readers at once.

    With resume_step the lines before that 0-based step are kept and all others cut, for they are about to
    be written again; without, the log starts empty.
    """

    def __init__(self, folder, resume_step=None):
        self._file = _open_cut(Path(folder) / MAIN_LOG, resume_step, _step_of_line)

    def validation(self, step, loss):
        self._line(f"s:{step} tel:{loss:.4f}")

    def evaluation(self, step, accuracy):
        self._line(f"s:{step} eval:{accuracy:.4f}")

    def train(self, step, loss, lr, norm):
        self._line(f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}")

    def close(self):
        self._file.close()

    def _line(self, text):
        self._file.write(text + "\n")


class JsonLog:
    """One JSON object per line, each with a "step"; cut on resume like MainLog.

    JSON has no NaN or infinity: such numbers are written as null.
    """

    def __init__(self, path, resume_step=None):
        self._file = _open_cut(Path(path), resume_step, _update_of_json)

    def write(self, step, **values):
        record = {"step": step}
        record.update((name, _plain(value)) for name, value in values.items())
        self._file.write(json.dumps(record, allow_nan=False) + "\n")

    def close(self):
        self._file.close()


def read_main_log(path):
    """{"tel": [(step, loss)], "eval": [(step, accuracy)], "trl": [(step, loss, lr, norm)]}.

    Lines of another form, such as a last one cut off by a crash, are passed over; of a repeated step the
    last value wins.
    """
    series = {"tel": {}, "eval": {}, "trl": {}}
    for line in _whole_lines(Path(path)):
        found = LINE.fullmatch(line)
        if found:
            step, kind, value, *train = found.groups()
            numbers = (value,) if kind else train
            series[kind or "trl"][int(step)] = (int(step), *map(float, numbers))
    return {kind: [rows[step] for step in sorted(rows)] for kind, rows in series.items()}


def read_json_log(path):
    """The records of a JsonLog, in order of steps; a line cut off by a crash is passed over."""
    records = []
    for line in _whole_lines(Path(path)):
        if _step_of_json(line) is not None:
            records.append(json.loads(line))
    return sorted(records, key=lambda record: record["step"])


def _whole_lines(path):
    """Lines that end in a line break; what follows the last one was being written."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]


def _open_cut(path, resume_step, step_of):
    kept = []
    if resume_step is not None and path.exists():
        steps = ((step_of(line), line) for line in _whole_lines(path))
        kept = [line for step, line in steps if step is not None and step < resume_step]
    with atomic_write(path) as file:
        file.writelines(f"{line}\n".encode() for line in kept)
    return open(path, "a", encoding="utf-8", buffering=1)


def _step_of_line(line):
    found = LINE.fullmatch(line)
    return int(found[1]) if found else None


def _step_of_json(line):
    try:
        step = json.loads(line)["step"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return step if type(step) is int else None


def _update_of_json(line):
    """The update that a line is about: the last one before it, for a checkpoint."""
    step = _step_of_json(line)
    return step - 1 if step is not None and json.loads(line).get("kind") == "checkpoint" else step


def _plain(value):
    """`value` as JSON can hold it: a NumPy scalar as a Python number, what is not finite as None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value

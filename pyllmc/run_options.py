"""run.toml: the options of a run, in its folder, by which it can be repeated."""

import os
import shlex

from . import options, rundir
from .atomic import atomic_write
from .callbacks import Callbacks
from .errors import LlmcError, sentence
from .options_file import options_text, read_options, toml_of
from .tokenizer import NAMES
from .train_options import ENGINE_FIELDS, GROUPS, HYPER_FIELDS, ROWS, WITHOUT_EFFECT

# Which folder, and whether it is gone on with there, is no part of what the run does.
LEFT_OUT = ("config", "output", "resume", "resume_weights_only", "rank", *WITHOUT_EFFECT)
HEADING = f"Options of a run. To repeat it: python -m pyllmc.train --config {rundir.RUN_OPTIONS} -o ANOTHER_FOLDER"


def in_force(args, trainer):
    """{row.name: value} of the options of `trainer`'s run: what was given, and what has been decided for the rest.

    What follows from other options, as maxT does from T, is left to follow: then one of them can be changed in a
    repetition. Paths become absolute. args: the command line's.
    """
    model, chosen = trainer.model, trainer.settings
    found = {row.name: getattr(args, row.name) for row in ROWS if row.name not in LEFT_OUT}
    engine, hyper = vars(model.options), {**model.hyper_default(), **chosen.hyper}
    for name in ENGINE_FIELDS:
        if name != "seed":  # one number for several generators, each with a default of its own
            found[name] = options.word_of(name, engine[name]) if name in options.WORDS else engine[name]
    found.update({name: hyper[name] for name in HYPER_FIELDS})
    found.update(
        batch=model.batch, seq_len=model.seq_len, steps=trainer.steps, lr=trainer.schedule.lr, result_lag=trainer.result_lag,
        device=model.device,
    )  # fmt: skip
    if not args.hellaswag:
        del found["hellaswag_data"]
    if args.model is None:
        found.update({name: getattr(model.config, name) for name in ("layers", "heads", "channels")})
    return {row.name: _plain(row, found[row.name]) for row in ROWS if found.get(row.name) is not None}


def write_run_options(folder, step, values):
    """Write run.toml into `folder`; returns a note, or "".

    step: from which on `values` hold. A file with other options, which held up to there, is kept as
    run_until_SSSSSSSS.toml; one with the same stays as it is.
    """
    path = folder / rundir.RUN_OPTIONS
    note = ""
    if path.exists():
        try:
            before = read_options(path, ROWS)
        except (LlmcError, OSError) as error:
            note = sentence(error)
        else:
            if before == values:
                return ""
            note = _differences(before, values)
        kept = folder / f"run_until_{step:08d}.toml"
        with atomic_write(kept) as file:
            file.write(path.read_bytes())
        note = f"other options than in {path.name} before, now {kept.name}: {note}"
    with atomic_write(path) as file:
        file.write(options_text(values, GROUPS, HEADING).encode())
    return note


def how_to_go_on(folder):
    """What there is of a run that ended early, and the options that go on with it. folder: None if it wasn't begun."""
    step = folder and rundir.find_latest_complete(folder).step
    if step is None:
        return "no checkpoint was saved yet (-n N saves every N updates)"
    path = folder / rundir.RUN_OPTIONS
    same = f"--config {shlex.quote(str(path))}" if path.exists() else "with the same options"
    return f"the checkpoint of step {step} is kept; {same} -o {shlex.quote(str(folder))} -y 1 goes on from it"


class RunOptions(Callbacks):
    """Writes run.toml after the first update: by then a run's input is known to be good, and nothing was saved yet.

    values: a function that gives the options in force.
    """

    def __init__(self, folder, values, on_note):
        self._folder, self._values, self._on_note = folder, values, on_note
        self._written = False

    def on_step(self, report):
        if self._written:
            return
        note = write_run_options(self._folder, report.step, self._values())
        self._written = True
        if note:
            self._on_note(note)


def _plain(row, value):
    """A value as the command line would give it: 1 of C's as True, a path that holds in any working folder."""
    is_name = row.name in ("model", "tokenizer") and (value in NAMES or not os.path.exists(value))
    if row.metavar in ("FILE", "PATTERN", "MODEL") or row.name == "tokenizer":
        return value if is_name else os.path.abspath(value)
    return bool(value) if row.kind is bool or row.switch else value


def _differences(before, now):
    """The options that differ, with both values."""
    keys = {row.name: row.key for row in ROWS}
    shown = {name: "nothing" if name not in now else toml_of(now[name]) for name in keys}
    was = {name: "nothing" if name not in before else toml_of(before[name]) for name in keys}
    return ", ".join(f"{keys[name]} {shown[name]} (was {was[name]})" for name in keys if shown[name] != was[name])

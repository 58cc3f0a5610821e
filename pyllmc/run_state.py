"""A run's checkpoints: everything that the next step depends on, out of the model and back into it.

llm.c's files hold weights, moments, loader and rounding generator. What else a step looks at, the memory
of the outlier guard and the optimizer's own count of updates, lies beside them in extra_SSSSSSSS.json, as do B and T,
by which the loader counts.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import options, rundir
from .atomic import atomic_write
from .checkpoint import iter_checkpoint, peek_checkpoint, write_checkpoint
from .errors import FormatError, InvalidArgument
from .lazy import Watched
from .optimizer_state import LoaderState, OptimizerState, read_state, split_by_tensor, write_state

WEIGHTS_ONLY = "--resume-weights-only (resume_weights_only=True) takes the weights and starts a fresh optimizer"
EMPTY_GUARD = {"loss": [], "norm": [], "loss_seen": 0, "norm_seen": 0}


@dataclass(frozen=True)
class Resumed:
    """What was found: the step (updates done), the loader's state or None, and remarks for the user."""

    step: int
    loader: LoaderState | None
    notes: tuple = ()


class Abandoned(Exception):
    """A save that is no longer wanted."""


def save(folder, step, source, loader_state, declare=rundir.mark_complete, tick=lambda values: None):
    """Write the checkpoint of `step` into `folder` and return the path of its model file.

    source: a GPT2, whose enqueued work is waited for, or a Snapshot of one. Each file appears complete or not at
    all, and declare(folder, step), which marks the set as complete, comes last: a kill at any moment leaves the
    previous checkpoint in charge. An exception leaves no file of the set. tick(values) is called after each tensor
    and may raise Abandoned.
    """
    folder, rank = Path(folder), source.options.rank
    try:
        (folder / rundir.done_name(step)).unlink(missing_ok=True)  # of another run's same step: not to be mixed
        now, before = source.rng
        m, v, master, params = (Watched(kind, tick) for kind in (source.m, source.v, source.master, source.params))
        state = OptimizerState(
            step, m.values(), v.values(), master.values() if keeps_master(source) else None,
            loader_state, source.options.world, rank, now, before,
        )  # fmt: skip
        write_state(folder / rundir.state_name(step, rank), state)
        if rank == 0:
            dtype = options.word_of("precision", source.options.precision)
            write_checkpoint(folder / rundir.model_name(step), source.config, params, dtype)
            tick(0)
            with atomic_write(folder / rundir.extra_name(step)) as file:
                shape = {"batch": source.options.batch, "seq_len": source.options.seq_len}
                file.write(json.dumps({"updates": source.updates, "guard": source.guard, **shape}).encode())
            declare(folder, step)
    except Abandoned:
        raise  # who abandoned it takes its files away: by now they may be another save's
    except BaseException:
        with contextlib.suppress(OSError):
            discard(folder, step)
        raise
    return folder / rundir.model_name(step)


def discard(folder, step):
    """Take away what a save of `step` has left, unless it was complete."""
    if not (Path(folder) / rundir.done_name(step)).exists():
        rundir.remove_checkpoint(folder, step)
    rundir.sweep(folder, step)


def keeps_master(model):
    """Whether the engine keeps fp32 copies of narrower weights."""
    return bool(
        options.word_of("precision", model.options.precision) != "fp32" and model.options.master_weights
    )


def find(folder, weights_only=False, world=1):
    """(step, model path, notes) of the checkpoint to resume in `folder`; step None: there is none.

    Notes say which newer ones were passed over and why. Raises InvalidArgument where there are weights
    without optimizer state, unless weights_only asks for just those.
    """
    folder = Path(folder)
    latest = rundir.find_latest_complete(folder, world)
    notes = [f"{folder / name} passed over: {reason}" for name, reason in latest.skipped]
    if latest.step is not None:
        return latest.step, folder / rundir.model_name(latest.step), notes
    weights = sorted(folder.glob("model_*.bin"))
    if not weights:
        return None, None, notes
    if not weights_only:
        digits = weights[-1].stem.removeprefix("model_")
        why = dict(latest.skipped).get(f"DONE_{digits}", "no marker says that it is complete")
        raise InvalidArgument(
            f"{weights[-1]} has no complete optimizer state beside it ({why}), so the run can't be resumed exactly; "
            f"{WEIGHTS_ONLY}"
        )
    peek_checkpoint(weights[-1])
    digits = weights[-1].stem.removeprefix("model_")
    if not digits.isdigit():
        raise InvalidArgument(f"{weights[-1]}: its name doesn't say the step, expected model_ and 8 digits")
    return int(digits), weights[-1], notes


def restore(folder, model, weights_only=False):
    """Bring `model` to the latest checkpoint in `folder`. Returns Resumed, or None when there is none.

    Raises InvalidArgument for a model of another shape, B or T, FormatError for a damaged file.
    """
    world, rank = model.options.world, model.options.rank
    step, path, notes = find(folder, weights_only, world)
    if step is None:
        return None
    config, _ = peek_checkpoint(path)
    if config != model.config:
        raise InvalidArgument(f"{path} holds {config}, the model is {model.config}")
    extra = path.parent / rundir.extra_name(step)
    if extra.exists() and not weights_only:
        _check_rows(extra, model.options)
    for name, array in iter_checkpoint(path):
        model.params[name] = array
    if weights_only:
        _forget(model)
        notes.append(f"weights only from {path}: fresh optimizer, data from its beginning")
        return Resumed(step, None, tuple(notes))
    state = read_state(path.parent / rundir.state_name(step, rank), config)
    _restore_optimizer(model, state, notes)
    model.rng, model.updates = state.rounding, step
    if extra.exists():
        _restore_extra(model, extra)
    else:
        model.guard = EMPTY_GUARD
        notes.append(f"{extra.name} isn't there, as in a folder of llm.c's: the outlier windows start empty")
    return Resumed(step, state.loader, tuple(notes))


def _forget(model):
    """Leave the model no more than its weights."""
    for kind in (model.m, model.v):
        for name, shape in model.config.shapes().items():
            kind[name] = np.zeros(shape, np.float32)
    model.updates, model.guard = 0, EMPTY_GUARD


def _restore_optimizer(model, state, notes):
    for name, array in split_by_tensor(state.m, model.config).items():
        model.m[name] = array
    for name, array in split_by_tensor(state.v, model.config).items():
        model.v[name] = array
    if state.master is None:
        if keeps_master(model):
            notes.append("the checkpoint has no master weights: they start from the stored weights")
        return
    wanted = "master weights" if keeps_master(model) else "weights, in place of their rounded copy"
    if not keeps_master(model):
        notes.append(f"the checkpoint's master weights are taken as {wanted}")
    target = model.master if keeps_master(model) else model.params
    for name, array in split_by_tensor(state.master, model.config).items():
        target[name] = array


def _restore_extra(model, path):
    try:
        values = json.loads(path.read_bytes())
        model.updates, model.guard = int(values["updates"]), values["guard"]
    except (ValueError, LookupError, TypeError, InvalidArgument) as error:
        raise FormatError(f"{path}: not the extra state of a checkpoint: {error}") from None


def _check_rows(path, options):
    """Raise InvalidArgument for another B or T: the loader's position counts such batches, so it'd be another place."""
    try:
        values = json.loads(path.read_bytes())
        was = {name: values.get(name) for name in ("batch", "seq_len")}
    except (ValueError, AttributeError) as error:
        raise FormatError(f"{path}: not the extra state of a checkpoint: {error}") from None
    for name, flag in (("batch", "-b"), ("seq_len", "-t")):
        now = getattr(options, name)
        if was[name] not in (None, now):
            raise InvalidArgument(
                f"the run in {path.parent} has {name} {was[name]}, not {now}, and counts its place in the data by it: resume "
                f"with {flag} {was[name]}; or {WEIGHTS_ONLY}, and the data from its beginning"
            )

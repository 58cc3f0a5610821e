"""The options of `python -m pyllmc.profile`; those of models, batches and the engine are the trainer's."""

import dataclasses

from ..cli import Option
from ..train_options import ENGINE
from ..train_options import ENGINE_FIELDS as TRAINING_FIELDS
from ..train_options import GROUPS as TRAINING
from ..train_options import SHAPE_FIELDS as SHAPE

# The trainer's short run on a text has defaults of its own, which mean nothing here.
PLAIN = {"small": None, "gpu": None, "gpu_by": ""}


def _trainers(group, *names, **changed):
    rows = {row.name: row for row in TRAINING[group]}
    return tuple(dataclasses.replace(rows[name], **PLAIN, **changed) for name in names or rows)


GROUPS = {
    "model": (
        *_trainers("model", "model", decided_by="d12 on a GPU, a small model on a CPU"),
        *_trainers("model", *SHAPE, decided_by="-e's"),
    ),
    "batch": _trainers("batch"),
    "profile": (
        Option("steps", "-x --steps", "steps to measure", int, 10),
        Option("warmup", "--warmup", "steps before them", int, decided_by="10 on CUDA, 2 on a CPU"),
        Option("kernels", "--kernels", "time every kernel through CUPTI, too", switch=True),
        Option("ceilings", "--ceilings", "measure copy bandwidth and a large product, and keep them for later profiles",
               switch=True),
    ),
    "results": (
        Option("output", "-o --output", "folder for pictures, trace and JSON", metavar="FOLDER",
               decided_by="profiles/TIME-MODEL"),
        Option("json", "--json", "print the profile as JSON instead of tables", switch=True),
        Option("draw", "--draw", "draw the pictures of a profile.json again, and measure nothing", metavar="FILE"),
    ),
    "engine": (
        *(row for row in _trainers("engine") if row.name not in ("result_lag", "recompute")),
        *_trainers("engine", "recompute", default=None, decided_by=ENGINE),
    ),
}  # fmt: skip

ENGINE_FIELDS = tuple(name for name in TRAINING_FIELDS if name not in ("seed", "zero_stage"))
BESIDE_DRAW = {"draw", "output", "json"}

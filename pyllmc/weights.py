"""The weights that a name means: an llm.c checkpoint, a run's latest, or a Hugging Face folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from . import run_state
from .checkpoint import lazy_checkpoint, peek_checkpoint
from .config import GPT2Config
from .errors import InvalidArgument
from .gpt2 import GPT2
from .hf import read_pretrained
from .hf_config import CONFIG, read_config
from .hub_names import hint

MAX_ROWS = 16  # beyond it more rows side by side save little


@dataclass(frozen=True)
class Weights:
    """path: a checkpoint file or a Hugging Face folder. folder: where companions such as a tokenizer lie.
    notes: remarks for the user."""

    path: Path
    folder: Path
    config: GPT2Config
    notes: tuple = ()

    def load(self, **arguments):
        """The GPT2; arguments as its own."""
        if self.path.is_file():
            return GPT2.from_checkpoint(self.path, **arguments)
        return GPT2.from_pretrained(self.path, **arguments)

    def params(self):
        """Mapping of name to float32 array: the 16 tensors, each read when it is asked for, wte with V or Vp rows."""
        return lazy_checkpoint(self.path)[2] if self.path.is_file() else read_pretrained(self.path).params


def find_weights(name):
    """The Weights that `name` means. Nothing but headers is read.

    Raises InvalidArgument for a folder without weights, FormatError for a damaged file, OSError for none.
    """
    path = Path(name)
    if not path.exists() and hint(name):
        raise InvalidArgument(f"{name}: no such file or folder{hint(name)}")
    if not path.is_dir():
        return Weights(path, path.parent, peek_checkpoint(path)[0])
    step, found, notes = run_state.find(path, weights_only=True)
    if step is not None:
        return Weights(found, path, peek_checkpoint(found)[0], tuple(notes))
    if (path / CONFIG).is_file():
        return Weights(path, path, read_config(path)[0])
    inside = "model_SSSSSSSS.bin of a run, or config.json of a Hugging Face model"
    seen = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
    raise InvalidArgument(f"{path} holds no model: expected {inside}, found {seen}")


def rows_that_fit(config, where, most):
    """How many rows to compute side by side: at most `most`, and what memory has room for. where: GPT2's other keywords."""
    rows = min(most, MAX_ROWS)
    while rows > 1:
        plan = GPT2.memory_plan(config, batch=rows, **where)
        if plan.total <= plan.device_free:
            break
        rows //= 2
    return rows

"""The weights that a name means: an llm.c checkpoint, a run's latest, or a Hugging Face folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from . import run_state
from .checkpoint import peek_checkpoint
from .config import GPT2Config
from .errors import FormatError, InvalidArgument, Unavailable
from .gpt2 import GPT2

HF_CONFIG = "config.json"
HF_FIELDS = {"layers": "n_layer", "heads": "n_head", "channels": "n_embd", "vocab": "vocab_size", "context": "n_positions"}


@dataclass(frozen=True)
class Weights:
    """path: a checkpoint file or a Hugging Face folder. folder: where companions such as a tokenizer lie.
    notes: remarks for the user."""

    path: Path
    folder: Path
    config: GPT2Config
    notes: tuple = ()

    def load(self, **arguments):
        """The GPT2; arguments as its own. Raises Unavailable where this build can't read the kind of file."""
        if self.path.is_file():
            return GPT2.from_checkpoint(self.path, **arguments)
        if not hasattr(GPT2, "from_pretrained"):
            raise Unavailable(
                f"{self.path} is a Hugging Face folder, which this version of pyllmc can't read: give it an "
                "llm.c checkpoint (.bin) of the same weights"
            )
        return GPT2.from_pretrained(self.path, **arguments)


def find_weights(name):
    """The Weights that `name` means. Nothing but headers is read.

    Raises InvalidArgument for a folder without weights, FormatError for a damaged file, OSError for none.
    """
    path = Path(name)
    if not path.is_dir():
        return Weights(path, path.parent, peek_checkpoint(path)[0])
    step, found, notes = run_state.find(path, weights_only=True)
    if step is not None:
        return Weights(found, path, peek_checkpoint(found)[0], tuple(notes))
    if (path / HF_CONFIG).is_file():
        return Weights(path, path, hf_shape(path / HF_CONFIG))
    inside = "model_SSSSSSSS.bin of a run, or config.json of a Hugging Face model"
    seen = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
    raise InvalidArgument(f"{path} holds no model: expected {inside}, found {seen}")


def hf_shape(path):
    """The GPT2Config that a Hugging Face config.json describes."""
    try:
        found = json.loads(path.read_bytes())
        return GPT2Config(**{field: found[key] for field, key in HF_FIELDS.items()})
    except KeyError as error:
        raise FormatError(f"{path}: lacks {error}: expected the configuration of a GPT-2") from None
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: not the configuration of a GPT-2: {error}") from None

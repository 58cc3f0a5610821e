"""The model that a command line names."""

import dataclasses
import os
from pathlib import Path

from .checkpoint import peek_checkpoint
from .config import GPT2Config
from .errors import InvalidArgument


def named_model(text, shape):
    """(name for people and folders, config, checkpoint file or None) of a checkpoint file or a descriptor.

    shape: {field: value} of GPT2Config to have instead of the descriptor's. Raises InvalidArgument for an
    unknown descriptor, or a shape given beside a file; FormatError or OSError for a file that isn't one.
    """
    if os.path.exists(text) or text.endswith(".bin"):
        config, _ = peek_checkpoint(text)
        if shape:
            raise InvalidArgument(f"--{next(iter(shape))} can't change the checkpoint {text}")
        return Path(text).stem, config, text
    return text.replace(":", "-"), dataclasses.replace(GPT2Config.from_descriptor(text), **shape), None

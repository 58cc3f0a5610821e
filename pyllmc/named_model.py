"""The model that a command line names."""

import dataclasses
import os
from pathlib import Path

from .config import GPT2Config
from .errors import InvalidArgument
from .hub_names import hint
from .weights import find_weights


def names_weights(text):
    """Whether `text` is meant as a file or folder, and not as a descriptor."""
    return os.path.exists(text) or text.endswith(".bin") or os.sep in text


def named_model(text, shape):
    """(name for people and folders, config, Weights or None) of a checkpoint file, a run folder, a Hugging Face folder
    or a descriptor.

    shape: {field: value} of GPT2Config to have instead of the descriptor's. Raises InvalidArgument for an
    unknown descriptor, a folder without a model, or a shape given beside weights; FormatError or OSError for a file
    that isn't a model.
    """
    if names_weights(text):
        weights = find_weights(text)
        if shape:
            raise InvalidArgument(f"--{next(iter(shape))} can't change the weights in {text}")
        return Path(os.path.abspath(text)).stem, weights.config, weights
    try:
        config = GPT2Config.from_descriptor(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{text}: no such file or folder{hint(text) or f'; {error}'}") from None
    return text.replace(":", "-"), dataclasses.replace(config, **shape), None

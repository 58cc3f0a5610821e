"""llm.c debug states: one batch with the logits, loss and gradients a reference program got for it."""

import math
from dataclasses import dataclass

import numpy as np

from .errors import FormatError
from .headers import DEBUG_STATE, HEADER_BYTES, check_size, file_size, read_exactly, read_header


@dataclass
class DebugState:
    """inputs, targets: int32 (B, T). logits: float32 (B, T, V). loss: float. grads: {name: float32 array}."""

    inputs: np.ndarray
    targets: np.ndarray
    logits: np.ndarray
    loss: float
    grads: dict


def read_debug_state(path, config):
    """The debug state at `path`, made with a model of shape `config` (the file does not name its model).

    Raises FormatError, also when the file's size does not fit `config`.
    """
    with open(path, "rb") as file:
        header = read_header(file, path, DEBUG_STATE)
        B, T = int(header[2]), int(header[3])
        if B < 1 or not 1 <= T <= config.context:
            raise FormatError(
                f"{path}: debug state has B={B}, T={T} (header[2], header[3]), expected B of at "
                f"least 1 and T from 1 to the model's context of {config.context}"
            )
        values = 2 * B * T + B * T * config.vocab + 1 + config.num_params
        check_size(
            path, DEBUG_STATE, file_size(file), HEADER_BYTES + 4 * values, f"B={B}, T={T} and {config}"
        )

        def take(shape, dtype):
            return read_exactly(file, path, np.empty(math.prod(shape), dtype)).reshape(shape)

        inputs, targets = take((B, T), "<i4"), take((B, T), "<i4")
        for name, ids in (("inputs", inputs), ("targets", targets)):
            if ids.min() < 0 or ids.max() >= config.vocab:
                raise FormatError(
                    f"{path}: {name} hold ids {ids.min()} to {ids.max()}, vocabulary is {config.vocab}"
                )
        logits = take((B, T, config.vocab), "<f4")
        loss = float(take((1,), "<f4")[0])
        grads = {name: take(shape, "<f4") for name, shape in config.shapes().items()}
    return DebugState(inputs, targets, logits, loss, grads)

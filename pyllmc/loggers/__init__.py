"""Where a run can be logged beside its own files: TensorBoard, Weights & Biases.

    Trainer(…, callbacks=[Logger(TensorBoard())])

A backend has four methods, and another one is a class with the same:
    open(run)                  once, before the first update; run: an events.RunInfo. May raise LlmcError: no training then
    scalars(step, values)      {name: number} of what was measured before or at update `step`
    text(step, name, content)  a text that the model drew
    close(error)               once; error: the exception that ended the run, or None
"""

from ..errors import InvalidArgument, nearest
from .events import Logger
from .tensorboard import TensorBoard
from .wandb import WeightsAndBiases

BACKENDS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}

__all__ = ["BACKENDS", "Logger", "TensorBoard", "WeightsAndBiases", "backends_of"]


def backends_of(words):
    """The backends that texts such as "tensorboard" or "tensorboard,wandb" name, each once.

    Raises InvalidArgument for an unknown name, Unavailable for a missing package.
    """
    names = [name.strip() for text in words for name in text.split(",")]
    for name in names:
        if name not in BACKENDS:
            raise InvalidArgument(f"--log {name!r}: {nearest(name, BACKENDS)}")
    return [BACKENDS[name]() for name in dict.fromkeys(names)]

"""What a trainer tells those who listen."""

from dataclasses import dataclass

from .errors import nearest
from .monitor import GpuReading


@dataclass(frozen=True)
class StepReport:
    """One update, for people. step counts from 0; ms: wall time since the one before, the device's own time
    where that is longer; tok_s: tokens per second; host_ms: the part of ms that was spent outside the engine;
    mfu: utilisation of the trainer's peak, None if unknown, above 1 if the peak is too low; skipped: None, or
    why the weights were left alone; gpu: a GpuReading of about now, None where none was due."""

    step: int
    loss: float
    norm: float
    lr: float
    ms: float
    tok_s: float
    host_ms: float
    mfu: float | None
    skipped: str | None
    gpu: GpuReading | None = None


class Callbacks:
    """What a trainer tells. Override what you need; each is called in the thread that runs the trainer.

    A subclass with another method named on_… raises TypeError: nobody would ever call it.
    """

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        events = [name for name in vars(Callbacks) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in events:
                raise TypeError(f"{cls.__name__}.{name}: a trainer tells no such thing: {nearest(name, events)}")

    def on_start(self, trainer):
        """Before the first update of run(); an exception here ends it."""

    def on_step(self, report):
        """A StepReport; with a result lag, that many updates late."""

    def on_validation(self, step, loss):
        """Mean loss on the validation data before update `step`."""

    def on_evaluation(self, step, accuracy):
        """Share of the HellaSwag examples answered right, 0 to 1, before update `step`."""

    def on_sample(self, step, ids):
        """Ids that the model drew, the prompt not among them."""

    def on_checkpoint(self, step, path):
        """The model file of a checkpoint that has become complete, maybe some steps after its own."""

    def on_end(self, error):
        """run() is over, however it ended; error: the exception that ended it, or None."""

    def on_note(self, text):
        """A sentence: the engine fell back, a resumed run lacked something, an optional part failed."""


def checked(given):
    """A Trainer's callbacks as a tuple. Raises TypeError for what isn't made of Callbacks."""
    alone = isinstance(given, (Callbacks, type)) or not hasattr(given, "__iter__")
    found = (given,) if alone else tuple(given)
    for one in found:
        if not isinstance(one, Callbacks):
            made = f"the class {one.__name__}, which lacks ()" if isinstance(one, type) else repr(one)
            raise TypeError(f"callbacks: expected objects of pyllmc.Callbacks' subclasses, got {made}")
    return found

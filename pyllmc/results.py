"""What an update reports, now or later."""

import functools
import math
from dataclasses import dataclass

from . import _native

SKIP_REASONS = {
    "LLMC_SKIP_NONE": None, "LLMC_SKIP_NONFINITE": "loss or gradient norm not finite",
    "LLMC_SKIP_LOSS_Z": "loss is an outlier", "LLMC_SKIP_NORM_Z": "gradient norm is an outlier",
}  # fmt: skip


@dataclass(frozen=True)
class StepResult:
    """loss: mean cross-entropy in nats over all micro-batches. grad_norm: before clipping. clip_scale: what
    the gradients were multiplied by. loss_z, norm_z: NaN until 128 values were seen. skipped: None, or why
    the weights were left alone. device_ms: the step's time on the device, NaN if unknown."""

    loss: float
    grad_norm: float
    clip_scale: float
    loss_z: float
    norm_z: float
    skipped: str | None
    device_ms: float

    @property
    def finite(self):
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class StepHandle:
    """An update that was enqueued. `result()` waits for it; the fields of StepResult do so too."""

    def __init__(self, model, ticket):
        self._model, self.ticket, self._result = model, ticket, None

    def result(self, timeout=None):
        """The StepResult. timeout: seconds, None: as long as it takes. Raises ResultTimeout."""
        if self._result is None:
            record = self._model.library.ffi.new(_native.ctype("llmc_step_result *"))
            self._model.handle.wait("llmc_result", (self.ticket,), (record,), timeout)
            self._result = StepResult(
                record.loss, record.grad_norm, record.clip_scale, record.loss_z, record.norm_z,
                _reason(record.skipped), record.device_ms,
            )  # fmt: skip
            self._model = None
        return self._result

    @property
    def done(self):
        """Whether result() would return without waiting."""
        try:
            self.result(timeout=0)
        except TimeoutError:
            return False
        return True

    @property
    def loss(self):
        return self.result().loss

    @property
    def grad_norm(self):
        return self.result().grad_norm

    @property
    def skipped(self):
        return self.result().skipped

    def __repr__(self):
        return f"StepHandle({self._result or f'ticket {self.ticket}'})"


@functools.cache
def _reason(number):
    named = {value: name for name, value in _native.constants().items() if name.startswith("LLMC_SKIP_")}
    name = named.get(number, str(number))
    return SKIP_REASONS.get(name, name)

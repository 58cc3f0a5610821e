"""What a training run can be told, checked before it starts."""

import dataclasses
import math
from dataclasses import dataclass

from . import options
from .errors import InvalidArgument, nearest
from .schedule import SHAPES


@dataclass(frozen=True)
class Settings:
    """Keywords of Trainer. Counts of steps are optimizer updates; "every" 0 is off.

    Raises TypeError for a misspelt keyword (naming the nearest), InvalidArgument for an impossible value.
    """

    steps: int | None = None  # length of the whole run; None: one epoch
    total_tokens: int | None = None  # per update, a multiple of B*T*world; None: one micro-batch
    schedule: str = "cosine"  # or linear, constant, wsd
    lr: float | None = None  # peak learning rate; None: C's default
    warmup: int = 0
    final_fraction: float = 1.0  # of lr, reached at the end
    hyper: dict = dataclasses.field(
        default_factory=dict
    )  # further fields of llmc_hyper, such as weight_decay
    val_every: int = 20
    val_batches: int = 20  # at most so many; -1: all
    hellaswag: str | None = None  # evaluation file to answer with each validation but the first, and at the end
    sample_every: int = 20
    sample_tokens: int = 64
    sample: dict = dataclasses.field(default_factory=dict)  # keywords of GPT2.stream
    prompt: tuple | None = None  # ids that samples start from; None: the last id, end-of-text in GPT-2's
    checkpoint_every: int = 0  # the end of the run is always saved
    keep: int = 0  # checkpoints to keep, the newest; 0: all
    major_every: int = 0  # of those at multiples of it, none is removed
    run_dir: str | None = None  # folder for checkpoints and logs; None: write nothing
    resume: bool = False  # go on from the latest checkpoint in run_dir, if there is one
    resume_weights_only: bool = False  # there, take the weights even if the optimizer's state is missing
    overfit: bool = False  # train on the loader's first batch (or batches of one update) again and again
    result_lag: int | None = None  # read results so many updates later; None: 2 on CUDA, 0 on the CPU
    peak_tflops: float | None = None  # of the device, for utilisation; None: as known for its name
    gpu_every: int = 1  # report the GPU's watts, clock and temperature every so many updates

    @classmethod
    def checked(cls, given):
        """Settings of a dict of keywords."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"Trainer has no setting {name!r}: {nearest(name, known)}")
        return cls(**given)

    def __post_init__(self):
        for name in ("val_every", "sample_every", "sample_tokens", "checkpoint_every", "keep", "major_every", "gpu_every",
                     "warmup"):  # fmt: skip
            _whole(name, getattr(self, name), 0, "0 (off) or more")
        _whole("val_batches", self.val_batches, -1, "-1 (all) or at least 1")
        if self.val_batches == 0:
            raise InvalidArgument("val_batches must be -1 (all) or at least 1, got 0 (val_every=0 is off)")
        if self.steps is not None:
            _whole("steps", self.steps, 1, "at least 1, or None for one epoch")
        if self.result_lag is not None:
            _whole("result_lag", self.result_lag, 0, "0 or more")
        if self.peak_tflops is not None and not 0 < self.peak_tflops < math.inf:
            raise InvalidArgument(f"peak_tflops must be a number above 0, got {self.peak_tflops!r}")
        if self.resume and self.run_dir is None:
            raise InvalidArgument("resume needs run_dir, the folder of the run to go on with")
        if self.resume_weights_only and not self.resume:
            raise InvalidArgument("resume_weights_only says how to resume: it needs resume (-y 1)")
        if self.schedule not in SHAPES:
            raise InvalidArgument(f"schedule {self.schedule!r}: {nearest(self.schedule, SHAPES)}")
        options.check_names(self.hyper, "llmc_hyper", "hyper")
        for name in ("learning_rate", "step"):
            if name in self.hyper:
                raise InvalidArgument(f"hyper can't hold {name}: the schedule and the trainer decide it")

    def micro_batches(self, batch, seq_len, world):
        """Micro-batches per update. Raises InvalidArgument with the nearest totals that would do."""
        share = batch * seq_len * world
        if self.total_tokens is None:
            return 1
        _whole("total_tokens", self.total_tokens, 1, "at least 1")
        n, rest = divmod(self.total_tokens, share)
        if rest:
            near = " or ".join(str(k * share) for k in (n, n + 1) if k)
            raise InvalidArgument(
                f"total_tokens {self.total_tokens} is no multiple of {share} (B {batch} x T {seq_len} x "
                f"{world} ranks): use {near}"
            )
        return n


def _whole(name, value, least, wanted):
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise InvalidArgument(f"{name} must be a whole number, {wanted}, got {value!r}")

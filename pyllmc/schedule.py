"""Learning rate per step."""

import math
import warnings

from .errors import InvalidArgument, nearest

WSD_DECAY = 0.2  # share of the steps over which "wsd" (warm-up, stable, decay) goes down


class Schedule:
    """schedule(step) is the learning rate of the 0-based `step` of a run of `steps`; finite, in [0, lr].

    cosine, linear: from `lr` after `warmup` steps to final_fraction * lr at the end. constant: always `lr`,
    without warm-up. wsd: `lr` up to 80% of the steps, then down by 1 - sqrt. Warm-up rises linearly and
    reaches `lr` in its last step. Past the end the final value holds.

    Raises InvalidArgument for an unknown name or an impossible number; warns where a setting has no effect.
    """

    def __init__(self, name, lr, steps, warmup=0, final_fraction=1.0):
        if name not in SHAPES:
            raise InvalidArgument(f"unknown learning rate schedule {name!r}: {nearest(name, SHAPES)}")
        _require(math.isfinite(lr) and lr >= 0, "peak learning rate", lr, "a finite number of at least 0")
        _require(steps >= 1, "steps", steps, "at least 1")
        _require(warmup >= 0, "warmup", warmup, "at least 0")
        _require(0 <= final_fraction <= 1, "final_fraction", final_fraction, "from 0 to 1")
        if name == "constant":
            if warmup:
                _warn(f"a constant schedule has no warm-up: warmup={warmup} is ignored")
            warmup = 0
        elif warmup >= steps:
            _warn(f"warm-up takes {warmup} of {steps} steps: the learning rate never decays")
        elif name == "wsd" and warmup > (1 - WSD_DECAY) * steps:
            _warn(
                f"warm-up takes {warmup} of {steps} steps and overlaps the decay, which starts part-way down"
            )
        self.name, self.lr, self.steps, self.warmup, self.final_fraction = (
            name,
            lr,
            steps,
            warmup,
            final_fraction,
        )

    def __call__(self, step):
        _require(step >= 0, "step", step, "at least 0")
        # clamped: rounding alone could pass the bounds by a last digit
        if step < self.warmup:
            return min(self.lr * (step + 1) / self.warmup, self.lr)
        remaining = SHAPES[self.name](step, self.steps, self.warmup)
        floor = self.lr * self.final_fraction
        return min(max(floor + remaining * (self.lr - floor), 0.0), self.lr)

    def __repr__(self):
        return (
            f"Schedule({self.name!r}, lr={self.lr}, steps={self.steps}, warmup={self.warmup}, "
            f"final_fraction={self.final_fraction})"
        )


def _done(step, begin, end):
    """Share of the way from `begin` to `end`, 1 at and past the end; an empty way is done."""
    return min((step - begin) / (end - begin), 1.0) if step >= begin and end > begin else float(step >= end)


def _cosine(step, steps, warmup):
    return 0.5 * (1 + math.cos(math.pi * _done(step, warmup, steps)))


def _linear(step, steps, warmup):
    return 1 - _done(step, warmup, steps)


def _constant(step, steps, warmup):
    return 1.0


def _wsd(step, steps, warmup):
    return 1 - math.sqrt(_done(step, (1 - WSD_DECAY) * steps, steps))


# name: what is left, from 1 down to 0, of the distance between the peak and the final learning rate
SHAPES = {"cosine": _cosine, "linear": _linear, "constant": _constant, "wsd": _wsd}


def _require(holds, name, value, wanted):
    if not holds:
        raise InvalidArgument(f"learning rate schedule: {name} must be {wanted}, got {value}")


def _warn(text):
    warnings.warn(text, stacklevel=3)

"""What a step is as a place on the x axis: a number of updates, of tokens, or of hours."""

import numpy as np

AXES = ("steps", "tokens", "time")
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
MOST = 1e15  # tokens or seconds of one step that can be believed
LONG = 3  # of a unit at least, for it to be the axis's


class ProgressAxis:
    """Maps steps of a History to x, NaN where it can't be known; call it with an array of steps.

    steps: updates before that one. tokens: that they were trained on, from tokens per second and time of each.
    time: seconds that they took, without validation, checkpoints and pauses; that too counts from the run's
    first step. What wasn't logged counts as the median step does.

    step: width of the median step. missing: what the log lacks for it, or "".
    """

    def __init__(self, history, kind="steps"):
        self._steps, self.missing = history.step, ""
        with np.errstate(over="ignore", invalid="ignore"):
            each = {"steps": np.ones(history.step.size), "time": history.ms / 1e3,
                    "tokens": np.round(history.tok_s * history.ms / 1e3)}[kind]  # fmt: skip
        known = (each >= 0) & (each < MOST)
        self.step = float(np.median(each[known])) if known.any() else np.nan
        if history.step.size and not known.any():
            self.missing = {"time": "no step times", "tokens": "no token counts"}[kind]
        self._each = np.where(known, each, self.step)
        gaps = np.diff(history.step, prepend=0.0)  # the first: steps before the log begins
        skipped = np.maximum(gaps - 1, 0) * self.step if history.step.size else gaps
        if history.step.size:
            skipped[0] = gaps[0] * self.step
        before = np.concatenate([[0.0], self._each[:-1]])[: skipped.size]
        self._x = np.cumsum(skipped + before)
        if kind == "steps":
            self._x, self.step = history.step, 1.0

    def __call__(self, steps):
        if self._steps.size == 0:
            return steps * self.step
        last = np.searchsorted(self._steps, steps, "right") - 1  # the logged step at or before each
        beyond = steps - self._steps[last]
        x = self._x[last] + np.where(beyond > 0, self._each[last] + (beyond - 1) * self.step, 0.0)
        return np.where(last < 0, steps * self.step, x)

    @property
    def end(self):
        return float(self._x[-1]) if self._x.size else 0.0


def unit_of(kind, end):
    """(what one unit of the axis is in units of ProgressAxis, its label). end: of the longest run."""
    if kind == "steps":
        return 1.0, "update"
    if kind == "tokens":
        return 1.0, "tokens trained on"
    return next((size, f"{name} of training") for size, name in UNITS if end >= LONG * size or size == 1.0)

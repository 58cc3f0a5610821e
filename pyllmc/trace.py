"""Runs as they stand in a picture: their looks, their places on its x axis, and what they lack."""

from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D

from .figure_style import VALIDATION, label, run_style
from .history import History
from .progress_axis import ProgressAxis, unit_of


@dataclass(frozen=True)
class Trace:
    """A run and its looks. colour and dashes tell it from other runs, `validation` (a colour) its validation from
    its training. scale: units of its ProgressAxis in one unit of the picture's axis."""

    history: History
    axis: ProgressAxis
    scale: float
    colour: str
    dashes: object
    validation: str

    def x(self, steps):
        return self.axis(steps) / self.scale

    @property
    def name(self):
        return label(self.history.name)

    @property
    def sign(self):
        """Its line in a legend."""
        return Line2D([], [], color=self.colour, ls=self.dashes, lw=1.6)

    @property
    def step_width(self):
        """Of the median step on the picture's axis."""
        return self.axis.step / self.scale


def ends_of(traces):
    """(first, last) place on the x axis that any run has something for; None if there is none."""
    histories = [(trace, trace.history) for trace in traces]
    x = finite_of([trace.x(steps) for trace, h in histories for steps in (h.step, h.val_step, h.eval_step)])
    return (float(x.min()), float(x.max())) if x.size else None


def traces_of(histories, axis="steps"):
    """([Trace], what the x axis is called). axis: one of progress_axis.AXES."""
    axes = [ProgressAxis(history, axis) for history in histories]
    scale, text = unit_of(axis, max((each.end for each in axes), default=0.0))
    traces = []
    for index, (history, each) in enumerate(zip(histories, axes, strict=True)):
        colour, dashes = run_style(index)
        traces.append(Trace(history, each, scale, colour, dashes, VALIDATION if len(histories) == 1 else colour))
    return traces, text


def missing_in(traces, columns, what):
    """Legend entries for runs that have nothing finite in any of the columns; `what` as in "no step times"."""
    return _lacking(
        [t for t in traces if not any(np.isfinite(getattr(t.history, column)).any() for column in columns)], what
    )


def missing_axis(traces):
    """The same of runs whose steps have no place on the x axis."""
    what = next((trace.axis.missing for trace in traces if trace.axis.missing), "")
    return _lacking([trace for trace in traces if trace.axis.missing], what)


def _lacking(traces, what):
    """An entry for each, one for all of them if they are many."""
    if len(traces) > 2:
        return [(None, f"{len(traces)} runs: {what}")]
    return [(trace.sign, f"{trace.name}: {what} in {label(trace.history.source)}") for trace in traces]


def finite_of(columns):
    """All finite values of several arrays in one."""
    return np.concatenate([values[np.isfinite(values)] for values in columns] or [np.zeros(0)])

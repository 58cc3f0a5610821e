"""One panel of a picture, and the parts that all panels are made of."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullLocator

from .console import count
from .curves import lonely, outline, running_mean, thin, window_of
from .figure_style import INK, PAPER, REFERENCE, SMALL, WRONG, legend
from .trace import finite_of

CLOUDS = 6  # runs, up to which the values behind a running mean are drawn too
NUMBERED = 4  # runs, up to which a legend of them has room inside a panel
DOTTED, DASHED = (0, (1, 2)), (0, (5, 3))
POINTS = {"marker": "o", "ms": 4.5, "mec": "white", "mew": 0.8}


class Panel:
    """Axes, the runs in them, and what is said there: legend entries (artist or None, text) and notes.

    smooth: "auto", or points to average over, 0 for none. log_y: wish for a logarithmic y axis. log_x: None, or
    up to where a symmetrically logarithmic x axis is linear. names: whether its legend names the runs.
    """

    def __init__(self, axes, traces, smooth="auto", log_y=False, log_x=None, names=True):
        self.axes, self.traces, self.smooth, self.log_y, self.log_x = axes, traces, smooth, log_y, log_x
        self.names, self.alone = names, len(traces) == 1
        self.entries, self.notes, self.legend_title = [], [], None
        self.logarithmic = False

    def values(self, column):
        """That column of every run's History."""
        return [getattr(trace.history, column) for trace in self.traces]

    def use_log(self, columns):
        """Make the y axis logarithmic if that is wished for; values that have no place on it are counted."""
        finite = finite_of(columns)
        if not self.log_y or not finite.size:
            return
        shown = finite[finite > 0]
        if not shown.size:
            self.notes.append("nothing above zero: no log axis")
            return
        if shown.size < finite.size:
            self.notes.append(f"{count(finite.size - shown.size, 'value')} of zero or less left out (log axis)")
        self.logarithmic = True
        self.axes.set_yscale("log")
        plain_ticks(self.axes.yaxis, shown.max() / shown.min())

    def shown(self, values):
        """Those of the values that have a place on the y axis; NaN for the others."""
        return np.where(np.isfinite(values) & ((values > 0) | (not self.logarithmic)), values, np.nan)

    def series(self, trace, values, colour, smooth=0, width=None):
        """A line over the steps; (line, what it is), or None if there is nothing to draw. colour: of a lone run."""
        x, values = trace.x(trace.history.step), self.shown(values)
        placed = np.isfinite(x)
        x, values = x[placed], values[placed]
        if not np.isfinite(values).any():
            return None
        colour, meaning = colour if self.alone else trace.colour, "training"
        window = window_of(smooth, values.size)
        if window:
            meaning = "training (mean of neighbours)"
            if len(self.traces) <= CLOUDS:
                self._plot(x, values, color=colour, lw=0.8, alpha=0.35 if self.alone else 0.2, label=f"{trace.name}: all")
            values = running_mean(values, window)
        line = self._plot(x, values, color=colour, ls=trace.dashes, lw=width or (1.8 if self.alone else 1.4),
                          label=f"{trace.name}: {meaning}")  # fmt: skip
        single = lonely(values)
        if single.any():
            self._plot(x[single], values[single], color=colour, ls="none", marker="o", ms=4,
                       label=f"{trace.name}: single points")  # fmt: skip
        return line, meaning

    def _plot(self, x, values, **looks):
        some = outline(x if self.log_x is None else np.log1p(x / self.log_x), values)
        (line,) = self.axes.plot(x[some], values[some], **looks)
        return line

    def points(self, trace, steps, values, meaning):
        """Values now and then, as dots on a line, of many runs as dots alone; the line, or None."""
        x, values = trace.x(steps), self.shown(values)
        values[~np.isfinite(x)] = np.nan
        if not np.isfinite(values).any():
            return None
        dashes = trace.dashes if len(self.traces) <= CLOUDS else "none"
        (line,) = self.axes.plot(x, values, color=trace.validation, lw=1.4 if self.alone else 0.8, ls=dashes,
                                 label=f"{trace.name}: {meaning}", **POINTS)  # fmt: skip
        return line

    def median(self, trace, values, unit, shown):
        """A dotted line at the median, with its number where there is room. shown: a number as text."""
        finite = values[np.isfinite(values)]
        if not finite.size:
            return
        middle = float(np.median(finite))
        line = self.axes.axhline(middle, color=INK if self.alone else trace.colour, lw=1.0, ls=DOTTED,
                                 label=f"{trace.name}: median")  # fmt: skip
        if len(self.traces) <= NUMBERED:
            self.entries.append((line if self.alone else trace.sign, f"median {shown(middle)} {unit}"))

    def mark_gaps(self, columns, late=False):
        """Crosses at the training steps that have no finite value, unless none has: such a log lacks the quantity.
        late: it may lack it at first, as the times of a run that llm.c's trainer began."""
        for trace, values in zip(self.traces, columns, strict=True):
            odd = ~np.isfinite(values)
            if late:
                odd &= np.logical_or.accumulate(~odd)
            if not odd.all():
                self.mark(trace, trace.history.step[odd], "x", "not finite")

    def mark(self, trace, steps, marker, meaning):
        """Signs near the lower edge."""
        x = trace.x(steps)
        x = thin(x[np.isfinite(x)])
        if not x.size:
            return
        looks = {"marker": marker, "ls": "none", "ms": 7, "mew": 1.8 if marker == "x" else 0}
        self.axes.plot(x, np.full(x.size, 0.025), color=WRONG if self.alone else trace.colour, clip_on=False, zorder=4,
                       transform=self.axes.get_xaxis_transform(), label=f"{trace.name}: {meaning}", **looks)  # fmt: skip
        if meaning not in [text for _, text in self.entries]:
            self.entries.append((Line2D([], [], color=WRONG if self.alone else REFERENCE, **looks), meaning))

    def cut_above(self, columns, top, unit="", bottom=None):
        """End the y axis at `top` where values lie beyond, and count those. bottom: None: a little below all."""
        finite = finite_of(columns)
        if not finite.size:
            return
        beyond = finite[finite > top]
        if beyond.size:
            self.notes.append(f"{beyond.size} above, up to {beyond.max():.4g}{unit}")
        if beyond.size or bottom is not None:
            low = finite.min()
            low = low - 0.05 * (top - low) if bottom is None else bottom
            self.axes.set_ylim(low, top if top > low else low + 1)

    def finish(self, **where):
        """Draw legend and notes; call it last."""
        legend(self.axes, self.entries, title=self.legend_title, **where)
        if self.notes:
            self.axes.annotate("\n".join(self.notes), (0, 1), xycoords="axes fraction", xytext=(4, -3), va="top",
                               textcoords="offset points", color=INK, fontsize=SMALL, bbox=PAPER)  # fmt: skip


def plain_ticks(axis, ratio):
    """Numbers without powers of ten on a logarithmic axis. ratio: of its largest value to its smallest."""
    axis.set_major_locator(AutoLocator() if ratio < 10 else LogLocator(subs=(1, 2, 5) if ratio < 1000 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

"""Pictures of runs, made of panels: a big one for one run or several, and the small one that a run ends with."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from . import panels
from .figure_style import (
    GRID,
    INK,
    PAPER,
    REFERENCE,
    SMALL,
    TIME,
    TRAIN,
    VALIDATION,
    WRONG,
    label,
    legend,
    new_figure,
    style,
)
from .history import read_history
from .panel import NUMBERED, POINTS, Panel, missing_axis, missing_in, traces_of
from .picture_file import own_settings, save
from .plot_options import AUTO, PANELS

# With what all pictures of the package share.
__all__ = [
    "GRID", "INK", "PAPER", "REFERENCE", "SMALL", "TIME", "TRAIN", "VALIDATION", "WRONG",
    "draw_run", "label", "legend", "new_figure", "own_settings", "run_figure", "runs_figure", "save", "style",
]  # fmt: skip

RUN_PICTURE = "run.png"
NAMES = 24  # in one column of a legend
LONG_NUMBERS = 1e5  # on the x axis, from which on thousands are written as k


class Kind(NamedTuple):
    """A panel: what draws it, the columns of History of which it needs one, and what their absence is called."""

    draw: object
    columns: tuple
    missing: str


KINDS = {
    "loss": Kind(panels.draw_loss, ("loss", "val_loss"), "no losses"),
    "eval": Kind(panels.draw_accuracy, ("accuracy",), "no evaluations"),
    "norm": Kind(panels.draw_norm, ("norm",), "no gradient norms"),
    "lr": Kind(panels.draw_rate, ("lr",), "no learning rates"),
    "time": Kind(panels.draw_times, ("ms",), "no step times"),
    "tok_s": Kind(panels.draw_speed, ("tok_s",), "no tokens per second"),
    "hist": Kind(panels.draw_histogram, ("ms",), "no step times"),
}


def draw_run(folder, unigram=None):
    """Draw the log in `folder` (what is missing is drawn as missing) and return the path of the PNG.

    unigram: entropy of the text in nats, drawn as a line to compare with.
    """
    folder = Path(folder)
    return save(run_figure(read_history(folder), unigram, folder.resolve().name), folder / RUN_PICTURE)


def run_figure(history, unigram=None, title=""):
    """Loss over steps above, milliseconds per step below; a Figure of a History."""
    return runs_figure([history], ("loss", "time"), unigram=unigram, title=title, columns=1, keep_empty=True)


def runs_figure(histories, names=PANELS, *, x="steps", smooth=AUTO, log_x=False, log_y=False, unigram=None,
                title="", columns=2, keep_empty=False):  # fmt: skip
    """A Figure of one History or several over each other.

    names: of the panels, some of PANELS. Those without data in any run are left out, save the loss and with
    keep_empty. x, smooth, log_x, log_y: as the options of the same names. columns: panels beside each other, 1 or 2.
    """
    traces, x_label = traces_of(histories, x)
    end = max((trace.axis.end / trace.scale for trace in traces), default=0.0)
    rows = rows_of(names if keep_empty else with_data(traces, names), columns)
    heights = [height_of(row, columns, len(traces)) for row in rows]
    outside = len(traces) > 1 and (len(traces) > NUMBERED or rows[0] != ["loss"])
    log_x = min((trace.step_width for trace in traces if trace.step_width > 0), default=1.0) if log_x else None
    with own_settings():
        figure = new_figure((9 if columns == 1 else 11) + 2 * outside, sum(heights) + (0.4 if title else 0.1))
        if title:
            figure.suptitle(label(title), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        grid, shared = figure.add_gridspec(len(rows), columns, height_ratios=heights), None
        for number, row in enumerate(rows):
            for column, name in enumerate(row):
                place = grid[number, :] if len(row) == 1 else grid[number, column]
                axes = figure.add_subplot(place, sharex=None if name == "hist" else shared, label=name)
                style(axes)
                if name != "hist":
                    shared = shared or axes
                    progress_ticks(axes, x, x_label, end, log_x, hidden=columns == 1 and row is not rows[-1])
                panel = Panel(axes, traces, smooth, log_y, log_x)
                compose(panel, name, name == rows[0][0], unigram, outside)
    return figure


def compose(panel, name, first, unigram, outside):
    """Draw one panel and what is said in it. first: it is the one with the legend of the runs."""
    kind, several = KINDS[name], len(panel.traces) > 1
    kind.draw(panel, **({"unigram": unigram} if name == "loss" else {}))
    if first and several:
        panel.entries[:0] = run_signs(panel.traces)
    if first:
        panel.entries += [(None, text) for text in missing_axis(panel.traces)]
    if several:
        panel.entries += [(None, text) for text in missing_in(panel.traces, kind.columns, kind.missing)]
    where = {"loc": "upper right", "fontsize": 9 if name == "loss" else SMALL}
    if several and (first and outside or name == "hist" and len(panel.traces) > NUMBERED):
        where |= {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0,
                  "ncol": -(-len(panel.traces) // NAMES)}  # fmt: skip
    elif name in ("time", "tok_s", "eval") and not panel.logarithmic:
        where["loc"] = "lower right"
    panel.finish(**where)


def run_signs(traces):
    """Legend entries: each run's line, and what a validation looks like."""
    entries = [(Line2D([], [], color=trace.colour, ls=trace.dashes, lw=1.8), trace.name) for trace in traces]
    if any(np.isfinite(trace.history.val_loss).any() for trace in traces):
        entries.append((Line2D([], [], color=REFERENCE, lw=1.0, **POINTS), "validation"))
    return entries


def progress_ticks(axes, kind, text, end, log_x, hidden):
    """The x axis of updates, tokens or time, with plain numbers. end: where the longest run does. log_x: None, or
    up to where the axis is linear."""
    if kind == "steps":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    if log_x is not None:
        axes.set_xscale("symlog", linthresh=log_x)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if end >= LONG_NUMBERS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if hidden:
        axes.tick_params(labelbottom=False)
    else:
        axes.set_xlabel(text, color=INK)


def with_data(traces, names):
    """The panels to draw: those that some run has data for, and the loss; the loss alone if there are none."""

    def any_has(name):
        placed = [trace.history for trace in traces if name == "hist" or not trace.axis.missing]
        return any(np.isfinite(getattr(history, column)).any() for history in placed for column in KINDS[name].columns)

    return [name for name in names if name == "loss" or any_has(name)] or ["loss"]


def rows_of(names, columns):
    """Names by rows: the loss over the whole width, the others in pairs; of an odd number one is wide too."""
    if columns == 1:
        return [[name] for name in names]
    others = [name for name in names if name != "loss"]
    lone = len(others)
    if lone % 2:
        lone = others.index("time") if "time" in others else 1
        lone = len(others) - 1 if lone % 2 else lone
    pairs = [others[i : i + 2] for i in range(0, lone, 2)] + [others[lone : lone + 1]]
    pairs += [others[i : i + 2] for i in range(lone + 1, len(others), 2)]
    return [["loss"]] * ("loss" in names) + [row for row in pairs if row]


def height_of(row, columns, runs):
    """Inches: the loss has more, and what stands beside a long legend as much as that."""
    if columns == 1:
        return 4.4 if row == ["loss"] else 1.9
    lines = min(runs, NAMES) if runs > NUMBERED and ("hist" in row or row == ["loss"]) else 0
    return max(3.6, 0.19 * (lines + 3)) if row == ["loss"] else max(2.4, 0.17 * (lines + 4))

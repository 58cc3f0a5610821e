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
from .panel import NUMBERED, POINTS, Panel
from .picture_file import own_settings, save
from .plot_options import AUTO, PANELS
from .trace import ends_of, missing_axis, missing_in, traces_of

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
    """Loss over steps above, milliseconds per step below, accuracy between them if there is one; a Figure of a
    History."""
    between = ("eval",) if np.isfinite(history.accuracy).any() else ()
    return runs_figure([history], ("loss", *between, "time"), unigram=unigram, title=title, columns=1, keep_empty=True)


def runs_figure(histories, names=PANELS, *, x="steps", smooth=AUTO, log_x=False, log_y=False, unigram=None,
                title="", columns=2, keep_empty=False):  # fmt: skip
    """A Figure of one History or several over each other.

    names: of the panels, some of PANELS. Those without data in any run are left out, save the loss and with
    keep_empty. x, smooth, log_x, log_y: as the options of the same names. columns: panels beside each other, 1 or 2.
    """
    traces, x_label = traces_of(histories, x)
    ends = ends_of(traces)
    rows = rows_of(names if keep_empty else with_data(traces, names), columns)
    many = len(traces) > NUMBERED
    outside = many or (len(traces) > 1 and rows[0] != ["loss"])
    naming = rows[0][-1]  # the panel whose legend names the runs: at the right edge, should that be outside
    beside = {name for name, long in ((naming, outside), ("hist", many)) if long}
    legend_columns = -(-len(traces) // NAMES)
    heights = [height_of(row, columns, min(len(traces), NAMES) if beside & set(row) else 0) for row in rows]
    log_x = min((trace.step_width for trace in traces if trace.step_width > 0), default=1.0) if log_x else None
    with own_settings():
        width = (9 if columns == 1 else 11) + (2 * legend_columns if beside else 0)
        figure = new_figure(width, sum(heights) + (0.4 if title else 0.1))
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
                    progress_ticks(axes, x, x_label, ends, log_x, hidden=columns == 1 and row is not rows[-1])
                panel = Panel(axes, traces, smooth, log_y, log_x, names=name == naming)
                KINDS[name].draw(panel, **({"unigram": unigram} if name == "loss" else {}))
                say(panel, name, legend_columns if name in beside else 0)
    return figure


def say(panel, name, beside):
    """Draw what is said in a panel. beside: columns of its legend, which stands at its right; 0: inside."""
    kind, traces = KINDS[name], panel.traces
    missing = [] if panel.alone else missing_in(traces, kind.columns, kind.missing)
    if panel.names and not panel.alone and name != "hist":  # which has its names already
        panel.entries[:0] = run_signs(traces, validated=name == "loss")
    if panel.names and not all(trace.axis.missing for trace in traces):
        missing = [*missing_axis(traces), *missing]
    panel.entries += [(sign, text) for i, (sign, text) in enumerate(missing) if text not in [t for _, t in missing[:i]]]
    where = {"loc": "upper right" if panel.notes or name == "hist" else "best"}
    if beside:
        where = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "ncol": beside}
    elif name in ("time", "tok_s", "eval") and not panel.logarithmic:
        where = {"loc": "lower right"}
    panel.finish(fontsize=9 if name == "loss" else SMALL, **where)


def run_signs(traces, validated):
    """Legend entries: each run's line, and what a validation looks like if there are such."""
    entries = [(trace.sign, trace.name) for trace in traces]
    if validated and any(np.isfinite(trace.history.val_loss).any() for trace in traces):
        entries.append((Line2D([], [], color=REFERENCE, lw=1.0, **POINTS), "validation"))
    return entries


def progress_ticks(axes, kind, text, ends, log_x, hidden):
    """The x axis of updates, tokens or time, with plain numbers. ends: as ends_of gives them. log_x: None, or up to
    where the axis is linear."""
    if kind == "steps":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    if log_x is not None:
        axes.set_xscale("symlog", linthresh=log_x)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if ends and ends[1] >= LONG_NUMBERS:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if ends and ends[0] == ends[1]:  # a single place: with numbers around it that exist
        axes.set_xlim(ends[0] - 0.5, ends[0] + 1.5)
    if hidden or not ends:
        axes.tick_params(labelbottom=False)
    if not hidden:
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


def height_of(row, columns, lines):
    """Inches: the loss has more, and a panel beside a legend as much as its lines take."""
    least = (4.4 if row == ["loss"] else 1.9) if columns == 1 else 3.6 if row == ["loss"] else 2.4
    return max(least, 0.19 * (lines + 4) if lines else 0)

"""What the panels show: each function draws one quantity of one or several runs into a Panel."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter

from .console import short
from .curves import spread
from .figure_style import INK, PAPER, REFERENCE, TIME, TRAIN
from .panel import CLOUDS, DASHED, DOTTED, NUMBERED, plain_ticks
from .trace import finite_of, missing_axis

GUESSING = 0.25  # accuracy of choosing among HellaSwag's four endings without reading them
FAR = 8.0  # times the 98th percentile: beyond, a loss or norm is cut off and counted, lest it flatten the rest
WIDE = 20.0  # slowest step over fastest, from which a histogram needs a logarithmic axis
LINE = 0.085  # of the height of a panel: a line of its legend
FEWEST_BINS, MOST_BINS = 12, 80


def draw_loss(panel, unigram=None):
    """Training loss with its running mean, validation as points, and what ignoring all context would reach."""
    axes, losses = panel.axes, panel.values("loss") + panel.values("val_loss")
    panel.use_log(losses)
    for trace in panel.traces:
        line = panel.series(trace, trace.history.loss, TRAIN, panel.smooth)
        if line and panel.alone:
            panel.entries.append(line)
    for trace in panel.traces:
        line = panel.points(trace, trace.history.val_step, trace.history.val_loss, "validation")
        if line and panel.alone:
            panel.entries.append((line, "validation"))
            label_last(axes, line)
    if unigram is not None:
        line = axes.axhline(unigram, color=REFERENCE, lw=1.2, ls=DASHED, label="unigram entropy")
        panel.entries.append((line, "unigram entropy of the text"))
    for trace in panel.traces:
        run = trace.history
        odd = run.step[~np.isfinite(run.loss) | run.skipped], run.val_step[~np.isfinite(run.val_loss)]
        panel.mark(trace, np.concatenate(odd), "x", "skipped or not finite")
        panel.mark(trace, run.resumed_at, "^", "resumed: steps logged again")
    axes.set_ylabel("loss (nats per token)", color=INK)
    if not panel.logarithmic:
        panel.cut_above(losses, far_top(losses))
    said = why_empty(panel)
    if said:
        axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", color=REFERENCE)
        axes.tick_params(labelleft=False)


def why_empty(panel):
    """What to say in a loss panel without any curve; "" if there is one."""
    losses = panel.values("loss") + panel.values("val_loss")
    if not any(values.size for values in losses):
        return "no steps were logged"
    if all(trace.axis.missing for trace in panel.traces):
        return "\n".join(text for _, text in missing_axis(panel.traces))
    return "" if finite_of(losses).size else "no finite loss was logged"


def draw_accuracy(panel):
    for trace in panel.traces:
        panel.points(trace, trace.history.eval_step, trace.history.accuracy, "accuracy")
    line = panel.axes.axhline(GUESSING, color=REFERENCE, lw=1.2, ls=DASHED, label="guessing")
    panel.entries.append((line, "guessing"))
    panel.axes.set_ylabel("HellaSwag accuracy", color=INK)


def draw_norm(panel):
    norms = panel.values("norm")
    panel.use_log(norms)
    for trace in panel.traces:
        panel.series(trace, trace.history.norm, TRAIN, panel.smooth)
    panel.mark_gaps(norms)
    panel.axes.set_ylabel("gradient norm", color=INK)
    if not panel.logarithmic:
        panel.cut_above(norms, far_top(norms))


def draw_rate(panel):
    panel.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.use_log(panel.values("lr"))
    for trace in panel.traces:
        panel.series(trace, trace.history.lr, TRAIN)
    panel.mark_gaps(panel.values("lr"))
    panel.axes.set_ylabel("learning rate", color=INK)


def draw_times(panel):
    """Time of each step and its median, the axis cut above where a few slow steps would flatten the rest."""
    times = panel.values("ms")
    panel.use_log(times)
    for trace in panel.traces:
        panel.series(trace, trace.history.ms, TIME, width=1.0)
        panel.median(trace, trace.history.ms, "ms", "{:.4g}".format)
    panel.mark_gaps(times, late=True)
    panel.axes.set_ylabel("ms per step", color=INK)
    if not panel.logarithmic:
        panel.cut_above(times, usual_top(times), " ms", bottom=0)


def draw_speed(panel):
    speeds = panel.values("tok_s")
    panel.axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    for trace in panel.traces:
        panel.series(trace, trace.history.tok_s, TIME, width=1.0)
        panel.median(trace, trace.history.tok_s, "tok/s", short)
    panel.mark_gaps(speeds, late=True)
    panel.axes.set_ylabel("tokens per second", color=INK)
    panel.cut_above(speeds, usual_top(speeds), bottom=0)


def draw_histogram(panel):
    """Share of the steps by their time, in bins that all runs share; median, 5% and 95% in the legend."""
    axes = panel.axes
    timed = [(trace, trace.history.ms[np.isfinite(trace.history.ms) & (trace.history.ms > 0)]) for trace in panel.traces]
    timed = [(trace, ms) for trace, ms in timed if ms.size]
    axes.set_xlabel("ms per step", color=INK)
    axes.set_ylabel("share of steps (%)", color=INK)
    if not timed:
        return
    edges, highest = shared_bins([ms for _, ms in timed]), 0.0
    for trace, ms in timed:
        share = 100 * np.histogram(ms, edges)[0] / ms.size
        highest = max(highest, share.max())
        colour = TIME if panel.alone else trace.colour
        axes.stairs(share, edges, color=colour, lw=1.3, ls=trace.dashes, label=trace.name)
        if len(timed) <= CLOUDS:
            axes.stairs(share, edges, color=colour, alpha=0.2, fill=True, lw=0)
        low, median, high = spread(ms)
        axes.axvline(median, color=INK if panel.alone else colour, lw=1.0, ls=DOTTED, label=f"{trace.name}: median")
        sign = Line2D([], [], color=colour, ls=trace.dashes)
        named = f"{trace.name}: " if panel.names and not panel.alone else ""
        panel.entries.append((sign, f"{named}{median:.4g} [{low:.4g}, {high:.4g}]"))
    panel.legend_title = "median [5%, 95%] in ms"
    beyond = np.concatenate([ms[ms > edges[-1]] for _, ms in timed])
    if beyond.size:
        panel.notes.append(f"{beyond.size} beyond, up to {beyond.max():.4g} ms")
    if edges[-1] / edges[0] > WIDE:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis, edges[-1] / edges[0])
    axes.set_xlim(edges[0] ** 2 / edges[1], edges[-1] ** 2 / edges[-2])  # a bin of air at either end
    lines = 1 + len(panel.traces) if len(panel.traces) <= NUMBERED else 1  # of legend or notes, above the bins
    axes.set_ylim(0, max(highest, 1e-9) / (1 - LINE * (lines + 0.5)))


def shared_bins(samples):
    """Edges of bins for several samples of positive times; the slowest steps of each may lie beyond.

    The width is Freedman's and Diaconis's for the sample that needs the finest one. Equal ratios instead of equal
    widths where the samples lie far apart.
    """
    low = min(ms.min() for ms in samples)
    high = max(min(ms.max(), slow + 0.5 * (slow - ms.min())) for ms in samples for slow in [np.percentile(ms, 99)])
    if not high > low * (1 + 1e-9):
        return np.linspace(0.95 * low, 1.05 * low, FEWEST_BINS + 1)
    if high / low > WIDE:
        return np.geomspace(low, high, MOST_BINS // 2 + 1)
    widths = [2 * np.subtract(*np.percentile(ms, (75, 25))) / ms.size ** (1 / 3) for ms in samples]
    finest = min((width for width in widths if width > 0), default=high - low)
    return np.linspace(low, high, int(np.clip(round((high - low) / finest), FEWEST_BINS, MOST_BINS)) + 1)


def usual_top(columns):
    """Where an axis of times or speeds from zero on should end: above nearly all of every run."""
    tops = [1.15 * max(float(np.percentile(finite, 98)), 1.5 * float(np.median(finite)))
            for finite in (values[np.isfinite(values)] for values in columns) if finite.size]  # fmt: skip
    return max(tops, default=1.0)


def far_top(columns):
    """The end of an axis of losses or norms: the largest, unless that is absurdly far from nearly all others."""
    finite = finite_of(columns)
    if not finite.size:
        return 1.0
    usual = float(np.percentile(finite, 98))
    return 1.3 * usual if usual > 0 and finite.max() > FAR * usual else np.inf


def label_last(axes, line):
    """Write the last finite value of a line beside its point."""
    steps, values = line.get_data()
    at = np.flatnonzero(np.isfinite(values))[-1]
    axes.annotate(f"{values[at]:.2f}", (steps[at], values[at]), xytext=(4, 10), ha="right", color=line.get_color(),
                  textcoords="offset points", fontweight="bold", bbox=PAPER)  # fmt: skip

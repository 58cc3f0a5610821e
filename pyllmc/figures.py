"""Pictures of a run. Drawn without pyplot: no display is needed, the user's back end stays as it is."""

import math
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .rundir import read_json_log
from .trainer import JSON_LOG

# Okabe and Ito's colours, which differ for every kind of colour vision.
TRAIN, VALIDATION, TIME, REFERENCE, WRONG = "#0072B2", "#D55E00", "#009E73", "#6E6E6E", "#CC79A7"
INK, GRID = "#222222", "#E4E4E4"
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}  # behind words on lines
SMOOTH_FROM = 60  # points, from which on a running mean helps the eye


def draw_run(folder, unigram=None):
    """Draw folder/log.jsonl (what is missing is drawn as missing) and return the path of the PNG."""
    records = read_json_log(Path(folder) / JSON_LOG)
    path = Path(folder) / "run.png"
    figure = run_figure(records, unigram, Path(folder).resolve().name)
    FigureCanvasAgg(figure).print_png(path)
    return path


def run_figure(records, unigram=None, title=""):
    """Loss over steps above, milliseconds per step below; a Figure. records: as read_json_log gives them."""
    train = [record for record in records if record.get("kind") == "train"]
    val = [record for record in records if record.get("kind") == "val"]
    steps, loss, ms = (column(train, name) for name in ("step", "loss", "ms"))
    figure = Figure(figsize=(9, 6.4), dpi=130, layout="constrained", facecolor="white")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    draw_loss(upper, steps, loss, column(val, "step"), column(val, "val_loss"), unigram)
    mark_gaps(upper, steps, loss, [record.get("skipped") for record in train])
    draw_times(lower, steps, ms)
    for axes in (upper, lower):
        style(axes)
    lower.set_xlabel("update", color=INK)
    return figure


def draw_loss(axes, steps, loss, val_steps, val_loss, unigram):
    """Training loss with its running mean, validation points, and what ignoring all context would reach."""
    single = {"marker": "o", "markersize": 4} if np.isfinite(loss).sum() < 3 else {}
    if loss.size >= SMOOTH_FROM:
        axes.plot(steps, loss, color=TRAIN, lw=0.8, alpha=0.35)
        axes.plot(steps, running_mean(loss), color=TRAIN, lw=1.8, label="training (mean of neighbours)")
    elif loss.size:
        axes.plot(steps, loss, color=TRAIN, lw=1.8, label="training", **single)
    if val_loss.size:
        axes.plot(val_steps, val_loss, color=VALIDATION, lw=1.4, marker="o", ms=4.5, mec="white", mew=0.8,
                  label="validation")  # fmt: skip
        label_last(axes, val_steps, val_loss)
    if unigram is not None:
        axes.axhline(unigram, color=REFERENCE, lw=1.2, ls=(0, (5, 3)), label="unigram entropy of the text")
    axes.set_ylabel("loss (nats per token)", color=INK)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper right", labelcolor=INK)
    else:
        axes.text(0.5, 0.5, "no steps were logged", transform=axes.transAxes, ha="center", color=REFERENCE)


def label_last(axes, steps, values):
    """Write the last finite value beside its point."""
    finite = np.flatnonzero(np.isfinite(values))
    if finite.size:
        at = finite[-1]
        axes.annotate(f"{values[at]:.2f}", (steps[at], values[at]), xytext=(4, 10), ha="right",
                      textcoords="offset points", color=VALIDATION, fontweight="bold", bbox=PAPER)  # fmt: skip


def mark_gaps(axes, steps, loss, skipped):
    """Ticks on the lower edge at updates that were skipped or whose loss was not finite."""
    odd = ~np.isfinite(loss) | np.array([reason is not None for reason in skipped], bool)
    if odd.any():
        axes.plot(steps[odd], np.zeros(odd.sum()), "x", color=WRONG, ms=7, mew=1.8, clip_on=False,
                  transform=axes.get_xaxis_transform(), label="skipped or not finite")  # fmt: skip
        axes.legend(frameon=False, loc="upper right", labelcolor=INK)


def draw_times(axes, steps, ms):
    """Time of each step and its median, the axis cut above where a few slow steps would flatten the rest."""
    finite = ms[np.isfinite(ms)]
    axes.set_ylabel("ms per step", color=INK)
    if not finite.size:
        return
    median = float(np.median(finite))
    single = {"marker": "o", "markersize": 4} if finite.size < 3 else {}
    axes.plot(steps, ms, color=TIME, lw=1.0, **single)
    axes.axhline(median, color=INK, lw=1.0, ls=(0, (1, 2)))
    axes.annotate(f"median {median:.4g} ms", (1, median), xycoords=("axes fraction", "data"), xytext=(-4, 4),
                  textcoords="offset points", ha="right", color=INK, bbox=PAPER)  # fmt: skip
    top = 1.15 * max(float(np.percentile(finite, 98)), 1.5 * median)
    beyond = int((finite > top).sum())
    axes.set_ylim(0, top if top > 0 else 1)
    if beyond:
        axes.annotate(f"{beyond} above, up to {finite.max():.4g} ms", (0, 1), xycoords="axes fraction",
                      xytext=(4, -12), textcoords="offset points", color=TIME, bbox=PAPER)  # fmt: skip


def style(axes):
    axes.grid(True, color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    axes.margins(x=0.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def column(records, name):
    """One field of the records as float64, NaN where it is missing or was not finite."""
    values = (record.get(name) for record in records)
    return np.array([math.nan if value is None else value for value in values], np.float64)


def running_mean(values):
    """Mean of the finite values in a window of a thirtieth of all; NaN where the middle is not finite."""
    half = max(1, values.size // 60)
    finite = np.isfinite(values)
    sums = np.concatenate([[0], np.cumsum(np.where(finite, values, 0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    index = np.arange(values.size)
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, values.size)
    number = counts[high] - counts[low]
    mean = (sums[high] - sums[low]) / np.maximum(number, 1)
    return np.where(finite & (number > 0), mean, np.nan)

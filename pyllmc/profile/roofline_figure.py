"""Where ops stand below the measured ceilings: a roofline, and the time that each op takes above its floor."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..figures import GRID, INK, style
from .colours import COLOURS, UNKNOWN
from .figure_parts import PAPER, heading, legend, number

AREA = 900  # square points of a point whose op is the whole step
SMALLEST = 14
LABEL_PT = 7.5
SHOWN = 20  # bars at most
# from the left edge of a label to its point
LEADER = {"arrowstyle": "-", "color": "#AAAAAA", "lw": 0.6, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}


def roofline_figure(ops, ceilings, title="", subtitle=""):
    """Left, ops with FLOPs: achieved TFLOP/s over arithmetic intensity, below the measured ceilings. Right, ops
    that only move bytes: TB/s. A point's area is its op's share of the time.

    ops: as measured.op_rows lists them. ceilings: as ceilings.measure gives them, or None: then without lines.
    """
    counted = [row for row in ops if row["tflops"] and row["bytes"]]
    moving = [row for row in ops if row["tb_s"] and not row["tflops"]]
    figure = Figure(figsize=(13, 6.6), dpi=130, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=[1.75, 1])
    heading(figure, title, subtitle)
    _roof(left, counted, ceilings)
    _bandwidth(right, moving, ceilings)
    legend(figure, {row["kind"] for row in counted + moving})
    return figure


def _roof(axes, rows, ceilings):
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("matrix products and attention", loc="left", fontsize=9.5, color=INK)
    style(axes)
    axes.set_xlabel("arithmetic intensity, FLOP per byte of device memory", color=INK)
    if not rows:
        axes.text(0.5, 0.5, "no op with known FLOPs was timed", transform=axes.transAxes, ha="center", color=INK)
        return
    heights = [row["tflops"] for row in rows] + ([ceilings["product_tflops"]] if ceilings else [])
    unit, scale = ("TFLOP/s", 1) if max(heights) >= 1 else ("GFLOP/s", 1000)
    axes.set_ylabel(f"achieved {unit}", color=INK)
    x = np.array([row["flops"] / row["bytes"] for row in rows])
    y = scale * np.array([row["tflops"] for row in rows])
    ridge = ceilings["product_tflops"] / ceilings["copy_tb_s"] if ceilings else x.min()
    axes.set_xlim(min(x.min(), ridge) / 2, max(x.max(), ridge) * 5)  # room for the labels on the right
    axes.set_ylim(min(y) / 2.2, scale * max(heights) * 1.7)
    for axis in (axes.xaxis, axes.yaxis):  # 200 and not 2 x 10^2
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    if ceilings:
        _ceilings(axes, scale * ceilings["product_tflops"], scale * ceilings["copy_tb_s"], unit)
    axes.scatter(x, y, s=_areas(rows), c=_colours(rows), alpha=0.85, edgecolors="white", linewidths=0.8, zorder=3)
    _label_column(axes, x, y, [f"{row['op']}  {number(scale * row['tflops'])}" for row in rows])


def _ceilings(axes, peak, rate, unit):
    """The roof: rate times intensity up to the peak, in the unit of the axis."""
    low, high = axes.get_xlim()
    axes.plot([low, peak / rate, high], [low * rate, peak, peak], color=INK, lw=1.4, label="measured ceilings")
    axes.annotate(f"large product {number(peak)} {unit}", (low, peak), xytext=(4, 4), textcoords="offset points", ha="left",
                  fontsize=8, color=INK)  # fmt: skip
    bottom = axes.get_ylim()[0]
    at = math.sqrt(max(low, bottom / rate) * peak / rate)  # half-way up, as far as it is seen
    axes.annotate(f"copy {number(rate)} {unit.replace('FLOP', 'B')}", (at, at * rate), xytext=(9, -3), ha="left", va="top",
                  textcoords="offset points", fontsize=8, color=INK)  # fmt: skip


def _label_column(axes, x, y, texts):
    """Labels in a column on the right, in the order of their points' heights and apart from each other, each
    with a thin line to its point: that can't overlap, however close the points are."""
    bottom, top = (math.log(value) for value in axes.get_ylim())
    heights = (np.log(y) - bottom) / (top - bottom)
    order = np.argsort(heights)
    pitch = min(0.034, 0.94 / len(texts))
    places = spread(heights[order], pitch, 0.02, 0.98)
    for i, place in zip(order, places, strict=True):
        axes.annotate(texts[i], (x[i], y[i]), xytext=(0.77, place), textcoords="axes fraction", va="center", ha="left",
                      fontsize=LABEL_PT, color=INK, zorder=4, bbox=PAPER, arrowprops=LEADER)  # fmt: skip


def spread(wanted, pitch, low, high):
    """Places for sorted wanted ones, at least `pitch` apart and within low..high if there is room for all; each as
    near to its wish as its neighbours let it be."""
    groups = []  # [sum of (wish - offset within the group), members]: each is laid out from its mean
    for wish in wanted:
        groups.append([wish, 1])
        while len(groups) > 1 and _start(groups[-2]) + pitch * groups[-2][1] > _start(groups[-1]):
            total, members = groups.pop()
            groups[-1][0] += total - members * pitch * groups[-1][1]
            groups[-1][1] += members
    places = np.array([_start(group) + pitch * k for group in groups for k in range(group[1])])
    if places.size == 0:
        return places
    steps = pitch * np.arange(places.size)
    places = np.maximum(places, low + steps)
    return np.minimum(places, high - steps[::-1])


def _start(group):
    return group[0] / group[1]


def _bandwidth(axes, rows, ceilings):
    """Ops that only move bytes, the quickest on top."""
    rows = sorted(rows, key=lambda row: row["tb_s"])
    unit, scale = ("TB/s", 1) if not rows or rows[-1]["tb_s"] >= 0.2 else ("GB/s", 1000)
    axes.set_title("ops without counted FLOPs, by their bytes", loc="left", fontsize=9.5, color=INK)
    axes.set_xlabel(f"achieved {unit}", color=INK)
    style(axes)
    axes.grid(False, axis="y")
    places = np.arange(len(rows))
    rates = [scale * row["tb_s"] for row in rows]
    axes.hlines(places, 0, rates, color=GRID, lw=1.6, zorder=1)
    axes.scatter(rates, places, s=_areas(rows), c=_colours(rows), alpha=0.9, edgecolors="white", linewidths=0.8, zorder=3)
    axes.set_yticks(places, [row["op"] for row in rows], fontsize=8.5)
    axes.set_ylim(-0.8, max(len(rows), 1) - 0.2 + (0.6 if ceilings else 0))
    most = max(rates, default=1)
    if ceilings:
        rate = scale * ceilings["copy_tb_s"]
        axes.axvline(rate, color=INK, lw=1.4)
        axes.annotate(f"copy {number(rate)}", (rate, 1), xycoords=("data", "axes fraction"), xytext=(-4, -3),
                      textcoords="offset points", ha="right", va="top", fontsize=8, color=INK)  # fmt: skip
        most = max(most, rate)
    axes.set_xlim(0, 1.18 * most)
    for place, rate in zip(places, rates, strict=True):
        axes.annotate(number(rate), (rate, place), xytext=(10, 0), textcoords="offset points", va="center", fontsize=LABEL_PT,
                      color=INK, bbox=PAPER)  # fmt: skip


def floor_figure(ops, title="", subtitle=""):
    """Each op's time a step as a bar: up to its floor in its kind's colour, above it pale. Most time above first.
    Ops without a known floor are left out. None when there is no such op."""
    rows = sorted((row for row in ops if row["above_ms"] is not None), key=lambda row: -row["above_ms"])[:SHOWN]
    if not rows:
        return None
    height = 1.5 + 0.29 * len(rows)
    figure = Figure(figsize=(10, height), dpi=130, layout="constrained", facecolor="white")
    axes = figure.subplots()
    heading(figure, title, subtitle)
    places = np.arange(len(rows))[::-1]
    floors = np.array([min(row["floor_ms"], row["ms"]) for row in rows])
    above = np.array([max(row["above_ms"], 0.0) for row in rows])
    axes.barh(places, floors, color=_colours(rows), height=0.7)
    axes.barh(places, above, left=floors, color=_colours(rows), alpha=0.32, height=0.7)
    axes.set_yticks(places, [row["op"] for row in rows], fontsize=8.5)
    axes.set_xlabel("milliseconds a step: floor at the measured ceilings (full colour), above it (pale)", color=INK, fontsize=9)
    style(axes)
    axes.grid(False, axis="y")
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlim(0, 1.35 * max(row["ms"] for row in rows))
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f"{row['above_ms']:+.3f} ms, {row['of_ceiling']:.0%} of the {row['bound']} ceiling", (row["ms"], place),
                      xytext=(4, 0), textcoords="offset points", va="center", fontsize=LABEL_PT, color=INK)  # fmt: skip
    legend(figure, {row["kind"] for row in rows})
    return figure


def _areas(rows):
    return [max(SMALLEST, AREA * (row["share"] or 0)) for row in rows]


def _colours(rows):
    return [COLOURS.get(row["kind"], UNKNOWN) for row in rows]

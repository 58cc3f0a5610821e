"""The picture of a record: ratios with their intervals above, every step's time in order of measurement below."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ..atomic import atomic_write
from ..figures import GRID, INK, PAPER, REFERENCE, TIME, TRAIN, VALIDATION, WRONG, style
from .report import point_name, shape_of

# Most are Okabe and Ito's; those of B to G come again after G, where letters tell them apart.
COLOURS = {"A": TRAIN}
OTHERS = (VALIDATION, TIME, "#E69F00", "#56B4E9", "#8C6D1F", "#7A5195")
INCH_A_ROW, MOST_LABELLED = 0.36, 7
WIDE = 46  # characters, from which on a label is cut


def draw(path, record):
    """Draw the record to a PNG beside its JSON file `path`, and return the picture's path."""
    target = Path(path).with_suffix(".png")
    canvas = FigureCanvasAgg(figure_of(record))
    with atomic_write(target) as file:
        canvas.print_png(file)
    return target


def figure_of(record):
    """The Figure of a record."""
    compared = [c for c in record["comparisons"] if c["ratio"] and c["ratio"]["ratio"] is not None]
    points = list(dict.fromkeys(point_name(c["at"]) for c in record["comparisons"]))
    swept = len(points) > 1
    upper = 0.0 if not (compared or swept) else 3.0 if swept else 1.0 + INCH_A_ROW * len(compared)
    figure = Figure(figsize=(10, 1.0 + upper + 3.4), dpi=130, layout="constrained", facecolor="white")
    figure.suptitle(title(record), x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    rows = figure.subfigures(2, 1, height_ratios=[upper, 3.4]) if upper else [None, figure]
    if swept:
        left, right = rows[0].subplots(1, 2) if compared else (None, rows[0].subplots())
        if compared:
            draw_ratios_over(left, compared, points)
        draw_speed_over(right, record["comparisons"], points)
    elif compared:
        draw_ratios(rows[0].subplots(), compared)
    draw_steps(rows[1].subplots(), record["comparisons"], swept)
    return figure


def title(record):
    work, found = record["workload"], record["conditions"]
    text = f"{work['model']}, {shape_of(work)} on {found['device']}"
    if any(c["losses"] and c["losses"]["beyond"] for c in record["comparisons"]):
        text += "   LOSSES DIFFER"
    return text if record["complete"] else text + f"   INCOMPLETE: {record['stopped']}"


def colour(letter):
    """Of a side's letter: "A", "B", ..."""
    return COLOURS.get(letter) or OTHERS[(ord(letter[0]) - ord("B")) % len(OTHERS)]


def name_of(letter, side):
    label = side["label"] if len(side["label"]) <= WIDE else side["label"][: WIDE - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"{letter}  {label}"


def draw_ratios(axes, compared):
    """A row for each side: the ratio of its time to A's, the interval, the verdict in words."""
    places = np.arange(len(compared))
    for place, comparison in zip(places, compared, strict=True):
        ratio, letter = comparison["ratio"], comparison["letter"]
        if ratio["low"] is not None:
            axes.plot([ratio["low"], ratio["high"]], [place, place], color=colour(letter), lw=2.6, solid_capstyle="butt")
        axes.plot([ratio["ratio"]], [place], "o", color=colour(letter), ms=7, mec="white", mew=1.0)
        wrong = comparison["losses"]["beyond"]
        axes.annotate(
            ratio["words"] + (" \N{EM DASH} LOSSES DIFFER" if wrong else ""), (1.01, place),
            xycoords=("axes fraction", "data"), va="center", color=WRONG if wrong else INK, fontsize=9,
            fontweight="bold" if wrong else "normal", annotation_clip=False,
        )  # fmt: skip
    style(axes)
    axes.axvline(1, color=INK, lw=1.2)
    axes.set_yticks(places, [name_of(c["letter"], c["sides"]["B"]) for c in compared])
    axes.set_ylim(len(compared) - 0.5, -0.5)
    low, high = limits(compared)
    axes.set_xlim(low, high)
    per = "a token" if any(c["ratio"]["per"] == "token" for c in compared) else "a step"
    axes.set_xlabel(f"time {per} by that of A ({short_label(compared[0]['sides']['A'])}), with 95% interval", color=INK)
    for x, side, text in ((1, "right", "\N{LEFTWARDS ARROW} faster  "), (1, "left", "  slower \N{RIGHTWARDS ARROW}")):
        axes.annotate(text, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
                      ha=side, va="bottom", color=REFERENCE, fontsize=9)  # fmt: skip


def short_label(side):
    return side["label"] if len(side["label"]) <= WIDE else "A"


def limits(compared):
    """Of the ratio's axis: all intervals and 1, with room for the words on both sides of 1."""
    values = [1.0]
    for comparison in compared:
        ratio = comparison["ratio"]
        values += [x for x in (ratio["low"], ratio["ratio"], ratio["high"]) if x is not None]
    low, high = min(values), max(values)
    room = max(0.12 * (high - low), 0.001)
    least = 0.22 * (high - low + 2 * room)  # where "faster" and "slower" stand
    return max(0.0, min(low - room, 1 - least)), max(high + room, 1 + least)


def draw_ratios_over(axes, compared, points):
    """The ratio of each side over the values of a sweep."""
    letters = list(dict.fromkeys(c["letter"] for c in compared))
    for letter in letters:
        mine = [c for c in compared if c["letter"] == letter]
        x = [points.index(point_name(c["at"])) for c in mine]
        y = [c["ratio"]["ratio"] for c in mine]
        shift = 0.06 * (letters.index(letter) - (len(letters) - 1) / 2)
        axes.plot(np.add(x, shift), y, "o-", color=colour(letter), ms=5, lw=1.4, mec="white",
                  label=name_of(letter, mine[0]["sides"]["B"]))  # fmt: skip
        for place, comparison in zip(np.add(x, shift), mine, strict=True):
            if comparison["ratio"]["low"] is not None:
                bounds = [comparison["ratio"]["low"], comparison["ratio"]["high"]]
                axes.plot([place, place], bounds, color=colour(letter), lw=2.2, solid_capstyle="butt")
    style(axes)
    axes.axhline(1, color=INK, lw=1.2)
    axes.set_ylim(*limits(compared))
    for y, side, text in ((1, "bottom", " slower \N{UPWARDS ARROW}"), (1, "top", " faster \N{DOWNWARDS ARROW}")):
        axes.annotate(text, (0, y), xycoords=("axes fraction", "data"), xytext=(2, 3 if side == "bottom" else -3),
                      textcoords="offset points", va=side, color=REFERENCE, fontsize=9)  # fmt: skip
    axes.set_ylabel("time by that of A", color=INK)
    sweep_ticks(axes, points)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)


def draw_speed_over(axes, comparisons, points):
    """Tokens a second of each side over the values of a sweep."""
    speeds = {}
    for comparison in comparisons:
        for name, side in comparison["sides"].items():
            letter = "A" if name == "A" else comparison["letter"]
            if side["tokens_per_s"] is not None:
                here = speeds.setdefault(letter, (name_of(letter, side), {}))[1]
                here.setdefault(points.index(point_name(comparison["at"])), []).append(side["tokens_per_s"])
    for letter in sorted(speeds):
        label, found = speeds[letter]
        axes.plot(list(found), [np.median(values) for values in found.values()], "o-", color=colour(letter), ms=5,
                  lw=1.4, mec="white", label=label)  # fmt: skip
    style(axes)
    fastest = max((speed for _, found in speeds.values() for values in found.values() for speed in values), default=1)
    axes.set_ylim(0, (1.15 + 0.08 * len(speeds)) * fastest)  # the legend stands above
    axes.set_ylabel("tokens per second", color=INK)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}")
    sweep_ticks(axes, points)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)


def sweep_ticks(axes, points):
    names = [point.split("=")[0] for point in points]
    axes.set_xticks(range(len(points)), [point.partition("=")[2] for point in points])
    axes.set_xlim(-0.4, len(points) - 0.6)
    axes.set_xlabel(names[0], color=INK)


def draw_steps(axes, comparisons, swept=False):
    """Every step's time as a point in order of measurement; a stripe for each block, with a line at its mean."""
    start, drawn, everything, labels = 0, {}, [], {}
    for comparison in comparisons:
        first = start
        for block in comparison["blocks"]:
            letter = "A" if block["side"] == "A" else comparison["letter"]
            times = np.array([np.nan if x is None else x for x in block["step_ms"]], np.float64)
            stop = start + times.size
            axes.axvspan(start - 0.5, stop - 0.5, color=colour(letter), alpha=0.09, lw=0, gid="block")
            axes.plot([start - 0.5, stop - 0.5], [block["wall_ms"]] * 2, color=colour(letter), lw=1.6, gid="mean")
            xs, ys = drawn.setdefault(letter, ([], []))
            xs.extend(range(start, stop))
            ys.extend(times)
            everything.extend(times[np.isfinite(times)])
            labels.setdefault(letter, name_of(letter, comparison["sides"][block["side"]]))
            start = stop
        if len(comparisons) > 1 and start > first:
            head = comparison["at"] and "=".join(map(str, *comparison["at"].items())) if swept else ""
            text = head or f"A {comparison['letter']}"
            axes.axvline(start - 0.5, color="#999999", lw=0.8)
            axes.annotate(text, ((first + start - 1) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                          textcoords="offset points", ha="center", va="bottom", color=INK, fontsize=8)  # fmt: skip
    for letter, (xs, ys) in sorted(drawn.items()):
        axes.plot(xs, ys, ".", color=colour(letter), ms=3.5, alpha=0.75, label=labels[letter], gid="steps")
    style(axes)
    axes.grid(axis="x", color=GRID, lw=0)
    axes.set_xlabel("step, in order of measurement; a stripe is a block, a line its mean", color=INK)
    axes.set_ylabel("ms a step", color=INK)
    axes.set_xlim(-0.5, max(start, 1) - 0.5)
    frame_times(axes, np.array(everything))
    if drawn and len(drawn) <= MOST_LABELLED:
        legend = axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=8, labelcolor=INK,
                             loc="upper right", markerscale=2.5, ncols=min(len(drawn), 3))  # fmt: skip
        legend.set_zorder(5)


def frame_times(axes, times):
    """Limits that show differences of percents: a few slow steps are counted and not drawn; logarithms where
    the times of a sweep are far apart."""
    if not times.size:
        axes.text(0.5, 0.5, "no step was measured", transform=axes.transAxes, ha="center", color=REFERENCE)
        return
    low, high = float(times.min()), float(np.percentile(times, 98))
    if high > 4 * max(low, 1e-9) and low > 0 and np.median(times) > 1.5 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        low, high = low / 1.3, float(times.max()) * 1.8
    else:
        room = max(0.1 * (high - low), 0.002 * high) or 1.0
        low, high = max(0.0, low - room), high + 3 * room
    axes.set_ylim(low, high)
    beyond = int((times > high).sum())
    if beyond:
        axes.annotate(f"{beyond} step{'s' * (beyond > 1)} above, up to {times.max():.4g} ms", (0, 1), xycoords="axes fraction",
                      xytext=(4, -12), textcoords="offset points", color=REFERENCE, fontsize=8, bbox=PAPER)  # fmt: skip

"""What device memory is allocated for, and what it would be with more or less recomputation."""

from matplotlib.figure import Figure

from ..figures import GRID, INK
from ..memory import PARTS, size
from .figure_parts import bare, heading

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#6E6E6E")  # of PARTS
DARK_LETTERS = ("#56B4E9", "#CC79A7", "#E69F00")  # on these
LEVELS = ("-r 0, nothing recomputed", "-r 1, GELU recomputed", "-r 2, GELU and LayerNorm recomputed")
WITHIN = 0.07  # share of the axis from which on a part carries its name


def memory_figure(memory, title="", subtitle=""):
    """A stacked bar for each level of recomputation, the one in use in bold. memory: the profile's "memory"."""
    plans, level = memory["plans"], memory["recompute"]
    height = 1.75 + 0.52 * len(plans)
    figure = Figure(figsize=(10, height), dpi=130, layout="constrained", facecolor="white")
    axes = figure.subplots()
    heading(figure, title, subtitle)
    most = max((plan["total"] for plan in plans), default=1) or 1
    unit, name = (2**30, "GiB") if most >= 2**30 else (2**20, "MiB")
    for row, plan in enumerate(plans):
        left = 0.0
        for part, colour in zip(PARTS, COLOURS, strict=True):
            width = plan[part] / unit
            axes.barh(row, width, left=left, color=colour, height=0.66, label=part if row == 0 else None)
            if plan[part] >= WITHIN * most:
                axes.text(left + width / 2, row, f"{width:.3g}", ha="center", va="center", fontsize=8,
                          color=INK if colour in DARK_LETTERS else "white")  # fmt: skip
            left += width
        axes.annotate(size(plan["total"]), (left, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
                      fontweight="bold" if row == level else "normal", color=INK)  # fmt: skip
    axes.set_yticks(range(len(plans)), LEVELS[: len(plans)], fontsize=8.5)
    for row, label in enumerate(axes.get_yticklabels()):
        label.set_fontweight("bold" if row == level else "normal")
    axes.set_ylim(len(plans) - 0.4, -0.6)
    axes.set_xlim(0, 1.14 * most / unit)
    axes.set_xlabel(f"{name} of {size(memory['device_total'])} on the device", color=INK, fontsize=9)
    axes.grid(True, axis="x", color=GRID, lw=0.8)
    bare(axes)
    figure.legend(loc="outside lower center", ncols=len(PARTS), frameon=False, fontsize=8, labelcolor=INK,
                  handlelength=1, handleheight=1)  # fmt: skip
    return figure

"""What the profile's pictures have in common: heading, legend of kinds, numbers."""

from matplotlib.patches import Patch

from ..figures import INK
from .colours import COLOURS

PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}  # behind words on lines
SOFT = "#555555"


def heading(figure, title, subtitle):
    """A bold line and a plain one below it, for which the layout keeps room."""
    if not title:
        return
    figure.suptitle(f"{title}\n", x=0.008, ha="left", fontsize=12, fontweight="bold", color=INK)
    figure.text(0.008, 1 - 0.28 / figure.get_figheight(), subtitle, fontsize=9, color=SOFT, va="top", gid="subtitle")


def legend(figure, kinds, more=()):
    """The colours of these kinds of ops, and further handles, below the axes."""
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in kinds] + list(more)
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8,
                      labelcolor=INK, handlelength=1, handleheight=1, columnspacing=1.4)  # fmt: skip


def bare(axes):
    """No frame, and lines up from the values below."""
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

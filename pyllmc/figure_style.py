"""How every picture of this package looks."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .console import one_line

# Okabe and Ito's colours, which differ for every kind of colour vision.
TRAIN, VALIDATION, TIME, REFERENCE, WRONG = "#0072B2", "#D55E00", "#009E73", "#6E6E6E", "#CC79A7"
INK, GRID = "#222222", "#E4E4E4"
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}  # behind words on lines
# One hue a run. Their yellow is left out, for white paper swallows it; grey stands in.
PALETTE = (TRAIN, VALIDATION, TIME, WRONG, "#E69F00", "#56B4E9", INK, "#999999")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)))  # for more runs than there are hues
SMALL = 8  # points: words inside a panel
LONGEST = 44  # characters of a label


def run_style(index):
    """(colour, line style) of a run by its number: different for the first 32."""
    return PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)]


def new_figure(width, height):
    """An empty white Figure; sizes in inches."""
    return Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")


def style(axes):
    axes.grid(True, color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    axes.margins(x=0.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def label(text):
    """`text` as matplotlib shows it literally: dollars begin no mathematics; the middle of a long one left out."""
    text = one_line(text)
    if len(text) > LONGEST:
        half = (LONGEST - 1) // 2
        text = f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"
    return text.replace("$", r"\$")


def legend(axes, entries, **where):
    """A legend of [(artist or None, text)] if there are any.

    The texts are set afterwards, because matplotlib drops entries that begin with an underscore.
    """
    if not entries:
        return
    artists = [artist or Line2D([], [], ls="none") for artist, _ in entries]
    box = axes.legend(artists, [str(i) for i in range(len(entries))], labelcolor=INK,
                      title_fontsize=where.get("fontsize"),
                      **{"frameon": True, "framealpha": 0.8, "edgecolor": "none", **where})  # fmt: skip
    for drawn, (_, text) in zip(box.get_texts(), entries, strict=True):
        drawn.set_text(text)

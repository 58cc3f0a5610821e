"""A step as a picture: all lanes above, and a layer's forward and backward pass enlarged below."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..figures import GRID, INK
from .colours import GAP, UNKNOWN, colour_of, ink_on
from .figure_parts import bare, heading, legend
from .op_costs import kind_of
from .spans import COMPUTE, bounds, usable
from .trace_event import lane_order

WIDTH = 13.0  # inches
ROW, DETAIL = 0.5, 1.1  # inches of a lane above, and of an enlarged one
BAR = 0.76  # of a row
LABEL_PT, LINE_PT, POINTS = 7.5, 9.0, 72
ADVANCE = 0.55  # of a letter, in units of its size: what a label needs, without asking a renderer
SPARSE = 12  # spans on a lane
WIDE = 0.005  # of the width, from which on a bar can spare an outline
TOP_GAPS = 5
NOTABLE, LEAST = 2.0, 0.001  # medians, and share of the step, from which on a gap gets a number: events make the rest
APART = 0.012  # of the width, between numbers


def timeline_figure(spans, gaps, title="", subtitle=""):
    """The Figure. spans: of a step. gaps: as spans.analyse lists them, longest first."""
    spans = usable(spans)
    lanes = lane_order(spans)
    details = _details(spans)
    above = ROW * max(len(lanes), 1) + 0.25
    height = 1.35 + above + (DETAIL + 0.3) * len(details)
    figure = Figure(figsize=(WIDTH, height), dpi=130, layout="constrained", facecolor="white")
    ratios = [above, *(DETAIL for _ in details)]
    axes = figure.subplots(len(ratios), 1, height_ratios=ratios, squeeze=False)[:, 0]
    heading(figure, title, subtitle)
    start, end = bounds(spans)
    _lanes(axes[0], spans, lanes, start, end, ROW)
    _gaps(axes[0], gaps, numbered=True)
    axes[0].set_title("the whole step", loc="left", fontsize=9, color=INK)
    for panel, (caption, chosen) in zip(axes[1:], details, strict=True):
        left, right = chosen[0].start_us, max(span.end_us for span in chosen)
        beside = [s for s in spans if s.lane == chosen[0].lane and s.end_us > left and s.start_us < right]
        _lanes(panel, beside, [chosen[0].lane], left, right, DETAIL)
        _gaps(panel, [gap for gap in gaps if gap["end_us"] > left and gap["start_us"] < right])
        panel.set_title(caption, loc="left", fontsize=9, color=INK)
    axes[-1].set_xlabel("milliseconds since the step's start", color=INK, fontsize=9)
    _legend(figure, spans, gaps)
    return figure


def _details(spans):
    """[(caption, spans)] of the middle layer's forward and backward pass; nothing without layers."""
    layers = sorted({span.layer for span in spans if span.layer is not None})
    if not layers:
        return []
    layer = layers[len(layers) // 2]
    mine = [span for span in spans if span.layer == layer]
    backward = [i for i, span in enumerate(mine) if _is_backward(span.name)]
    turn = backward[0] if backward else len(mine)
    # with several micro-steps the forward pass comes again: one of each is shown
    again = next((i for i in range(turn, len(mine)) if not _is_backward(mine[i].name)), len(mine))
    parts = [(f"layer {layer} forward, enlarged", mine[:turn]), (f"layer {layer} backward, enlarged", mine[turn:again])]
    return [(caption, part) for caption, part in parts if part]


def _is_backward(name):
    return name.endswith((" bwd", " dweight", " dinput", " again"))


def _lanes(axes, spans, lanes, start, end, inches):
    """A row of so many inches for each lane with its spans as bars, labelled where the words fit."""
    axes.set_xlim(start / 1e3, max(end, start + 1e-3) / 1e3)
    axes.set_ylim(len(lanes) - 0.4 if lanes else 0.6, -0.6)
    axes.set_yticks(range(len(lanes)), lanes)
    for row, lane in enumerate(lanes):
        mine = [span for span in spans if span.lane == lane]
        colours = [colour_of(span.name) for span in mine]
        wide = [span.end_us - span.start_us > WIDE * (end - start) for span in mine]
        axes.broken_barh(
            [(span.start_us / 1e3, (span.end_us - span.start_us) / 1e3) for span in mine], (row - BAR / 2, BAR),
            # neighbours are told apart by a white outline; one in its own colour keeps a copy of microseconds
            # visible, and on a full lane would hide the gaps
            facecolors=colours, edgecolors=["white" if w else c for w, c in zip(wide, colours, strict=True)], gid=lane,
            linewidths=[0.6 if w else 0.9 if len(mine) < SPARSE and lane != COMPUTE else 0 for w in wide],
        )  # fmt: skip
        for span in mine:
            _label(axes, span, row, start, end, inches)
    bare(axes)
    axes.tick_params(labelsize=8.5)
    axes.grid(True, axis="x", color=GRID, lw=0.8)


def _label(axes, span, row, start, end, inches):
    """The name in the middle of its bar, on several lines or upright where that makes it fit; else not at all."""
    left, right = max(span.start_us, start), min(span.end_us, end)
    width = (right - left) / max(end - start, 1e-9) * WIDTH * 0.92 * POINTS
    height = inches * BAR * 0.8 * POINTS
    words = span.name.split(" ")
    broken = [span.name, "\n".join([" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])]).strip()]
    for upright in (False, True):
        for text in broken:
            lines = text.split("\n")
            along, across = max(map(len, lines)) * ADVANCE * LABEL_PT + 3, len(lines) * LINE_PT + 1
            room = (height, width) if upright else (width, height)
            if along <= room[0] and across <= room[1]:
                axes.text((left + right) / 2e3, row, text, ha="center", va="center", fontsize=LABEL_PT, color=ink_on(span.name),
                          rotation=90 if upright else 0, linespacing=0.95, clip_on=True)  # fmt: skip
                return


def _gaps(axes, gaps, numbered=False):
    """Marks under the first row where the lane has nothing; with numbers, the longest ones are named."""
    if not gaps:
        return
    axes.broken_barh(
        [(gap["start_us"] / 1e3, (gap["end_us"] - gap["start_us"]) / 1e3) for gap in gaps], (0.42, 0.12),
        facecolors=GAP, edgecolor=GAP, linewidth=0.4, gid="gaps",
    )  # fmt: skip
    for number, gap in enumerate(notable(gaps, axes.get_xlim()[1]) if numbered else (), 1):
        axes.annotate(str(number), ((gap["start_us"] + gap["end_us"]) / 2e3, 0.48), xytext=(0, -4), textcoords="offset points",
                      ha="center", va="top", fontsize=7, fontweight="bold", color=GAP, clip_on=False)  # fmt: skip


def notable(gaps, width_ms):
    """The longest gaps that stand out, none so near to a longer one that their numbers would touch."""
    if not gaps:
        return []
    lengths = [(gap["end_us"] - gap["start_us"]) / 1e3 for gap in gaps]
    usual = lengths[len(gaps) // 2] if len(gaps) > 1 else 0
    chosen = []
    for gap, ms in zip(gaps, lengths, strict=True):
        near = any(abs(gap["start_us"] - other["start_us"]) / 1e3 < APART * width_ms for other in chosen)
        if len(chosen) < TOP_GAPS and not near and ms >= max(NOTABLE * usual, LEAST * width_ms):
            chosen.append(gap)
    return chosen


def _legend(figure, spans, gaps):
    kinds, more = {kind_of(span.name) for span in spans}, []
    if None in kinds:
        more.append(Patch(color=UNKNOWN, label="other"))
    if gaps:
        named = "; ".join(
            f"{number}: {gap['end_us'] - gap['start_us']:.1f} \N{MICRO SIGN}s"
            for number, gap in enumerate(notable(gaps, bounds(spans)[1] / 1e3), 1)
        )
        more.append(Patch(color=GAP, label=f"gap in compute{f' ({named})' if named else ''}"))
    legend(figure, kinds, more)

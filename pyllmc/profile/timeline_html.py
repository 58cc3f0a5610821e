"""A step as one HTML file that needs nothing else: lanes to zoom into and move, and the tables beside them."""

import html
import json
from pathlib import Path

from .colours import COLOURS, GAP, colour_of, ink_on
from .op_costs import kind_of
from .spans import bounds, usable
from .trace_event import lane_order

TEMPLATE = Path(__file__).with_name("timeline.html")


def page(spans, gaps, title, subtitle="", tables=()):
    """The HTML text. gaps: as spans.analyse lists them. tables: (caption, heads, rows of text) to put below.

    Names go in as JSON and as escaped text, never as markup.
    """
    spans = usable(spans)
    lanes = lane_order(spans)
    start, end = bounds(spans)
    kinds = {kind_of(span.name) for span in spans}
    data = {
        "lanes": lanes, "start": start, "end": end, "gap_colour": GAP, "gaps": list(gaps),
        "kinds": [[kind, colour] for kind, colour in COLOURS.items() if kind in kinds] + [["gap in compute", GAP]],
        "spans": [
            {"lane": lanes.index(span.lane), "name": span.name, "layer": span.layer, "start": span.start_us,
             "end": span.end_us, "colour": colour_of(span.name), "ink": ink_on(span.name)}
            for span in spans
        ],
    }  # fmt: skip
    # "</script>" in a name would end the element: JSON may spell "<" as an escape
    embedded = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "@TITLE@": html.escape(title), "@SUBTITLE@": html.escape(subtitle),
        "@TABLES@": "\n".join(_table(*each) for each in tables), "@DATA@": embedded,
    }  # fmt: skip
    pieces = TEMPLATE.read_text(encoding="utf-8").split("@")
    # names between two @: what is filled in isn't looked at again, whatever it holds
    return "".join(parts.get(f"@{piece}@", piece) for piece in pieces)


def _table(caption, heads, rows):
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption>\n{line(heads, 'th')}\n{body}\n</table>"

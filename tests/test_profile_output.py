"""What a profile is drawn as: the trace's events, the page's content, rows, labels and counts of the pictures."""

import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic_step import step

from pyllmc.inspection import Span
from pyllmc.profile import measured, timeline_html
from pyllmc.profile.colours import COLOURS, UNKNOWN, colour_of
from pyllmc.profile.memory_figure import memory_figure
from pyllmc.profile.op_costs import Shape, step_work
from pyllmc.profile.roofline_figure import floor_figure, roofline_figure, spread
from pyllmc.profile.spans import analyse, bounds
from pyllmc.profile.timeline_figure import notable, timeline_figure
from pyllmc.profile.trace_event import trace

SHAPE = Shape(2, 1024, 768, 12, 50257, 50304, 124_000_000, 2048, 2, True, 2000)
BEST = {"copy_tb_s": 4.0, "product_tflops": 700.0, "how": "made up"}
GIB = 2**30


def op_rows(spans, ceilings=BEST):
    times = measured.op_times_from_spans([spans])
    return measured.op_rows(times, step_work(SHAPE, spans, 1), Counter(span.name for span in spans), ceilings)


def drawn(figure):
    """Draw it, so that the layout is done, and return its renderer."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert (np.asarray(canvas.buffer_rgba())[..., :3] != 255).any(axis=-1).mean() > 0.005
    return canvas.get_renderer()


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


# -- trace


def test_trace_has_an_event_for_every_span_and_gap():
    spans = step()
    gaps = analyse(spans)["gaps"]
    events = json.loads(json.dumps(trace(spans, "title", gaps)))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {1: "compute", 2: "inputs", 3: "targets", 4: "loss", 5: "gaps"}
    whole = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["pid"] == 1 and event["tid"] in names for event in whole)
    found = Counter((names[e["tid"]], e["name"], e["args"].get("layer"), e["ts"], e["ts"] + e["dur"]) for e in whole if e["cat"] != "gap")
    assert found.keys() == {(s.lane, s.name, s.layer, s.start_us, s.start_us + (s.end_us - s.start_us)) for s in spans}
    assert sum(event["cat"] == "gap" for event in whole) == len(gaps) > 0
    assert {event["ph"] for event in events} == {"X", "M"}


def test_a_trace_has_no_negative_times():
    spans = [Span("upload inputs", "inputs", None, -7.0, 1.0), Span("qkv", "compute", 0, 2.0, 5.0)]
    events = [event for event in trace(spans, "t", analyse(spans)["gaps"])["traceEvents"] if event["ph"] == "X"]
    assert {event["name"]: event["ts"] for event in events} == {"upload inputs": 0.0, "qkv": 9.0, "gap": 7.0}


def test_an_empty_trace_is_a_trace():
    assert [event["name"] for event in trace([], "t")["traceEvents"]] == ["process_name"]


# -- page


class Elements(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.cells = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.cells.append(data)


def page_data(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_page_holds_every_span_and_fetches_nothing():
    spans = step()
    gaps = analyse(spans)["gaps"]
    page = timeline_html.page(spans, gaps, "d12", "a device", [("ops", ("op", "ms"), [("qkv", 1)])])
    data, elements = page_data(page), Elements(page)
    assert data["lanes"] == ["compute", "inputs", "targets", "loss"] and len(data["spans"]) == len(spans)
    assert len(data["gaps"]) == len(gaps) and data["end"] == bounds(spans)[1]
    assert not [value for name, value in elements.attributes if name in ("src", "href")] and "://" not in page
    assert not re.search(r"@[A-Z]+@", page) and elements.tags.count("tr") == 2


def test_names_are_text_whatever_they_hold():
    evil = '</script><img src=x onerror="alert(1)">@DATA@&'
    page = timeline_html.page([Span(evil, "compute", 1, 0.0, 1.0)], [], evil, evil, [(evil, (evil,), [(evil,)])])
    elements = Elements(page)
    assert "img" not in elements.tags and elements.tags.count("script") == 2
    assert page_data(page)["spans"][0]["name"] == evil and evil in elements.cells


def test_page_draws_zooms_and_answers(tmp_path):
    node = shutil.which("node")
    if not node:
        pytest.skip("no node to run the page's script")
    spans = [Span(f"op {i}", "compute", i, 100.0 * i, 100.0 * i + 95) for i in range(100)]
    spans.append(Span("upload inputs", "inputs", None, 50.0, 90.0))
    path = tmp_path / "page.html"
    path.write_text(timeline_html.page(spans, analyse(spans)["gaps"], "t"))
    done = subprocess.run([node, Path(__file__).with_name("page_stub.js"), path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["legend"] == 2 and {"compute", "inputs"} <= set(found["whole"]) and "0.0 \u00b5s" in found["whole"]
    at = re.match(r"op (\d+), layer \1\n95.0 \u00b5s, 0.95% of the step", found["pointed"])
    assert at and found["beside"] is None
    assert found["pointed_zoomed"] == found["pointed"] == found["again"]
    assert found["moved"] == found["left"] != found["pointed"]  # dragged from there to here
    assert f"op {at[1]} \u00b7 {at[1]}" in found["zoomed"] and f"op {at[1]} \u00b7 {at[1]}" not in found["whole"]


# -- timeline picture


def bars(axes, lane):
    return next(part for part in axes.collections if part.get_gid() == lane)


def test_timeline_rows_labels_and_counts():
    spans = step()
    gaps = analyse(spans)["gaps"]
    figure = timeline_figure(spans, gaps, "d12", "a device")
    drawn(figure)
    whole, forward, backward = figure.axes
    assert [label.get_text() for label in whole.get_yticklabels()] == ["compute", "inputs", "targets", "loss"]
    for lane, count in Counter(span.lane for span in spans).items():
        assert len(bars(whole, lane).get_paths()) == count
    assert len(bars(whole, "gaps").get_paths()) == len(gaps)
    assert {"logits", "dlnf", "dwte", "adamw", "1"} <= set(texts_of(whole)) and "2" not in texts_of(whole)
    assert [axes.get_title("left") for axes in figure.axes] == ["the whole step", "layer 2 forward, enlarged", "layer 2 backward, enlarged"]
    assert texts_of(forward) == ["qkv", "attention", "attproj", "layernorm\n2", "fc", "fcproj", "layernorm\n1"]
    assert {"fcproj dweight", "attention bwd", "qkv dinput", "norm 2 bwd"} <= set(texts_of(backward)) and len(texts_of(backward)) == 11
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [*COLOURS, f"gap in compute (1: {gaps[0]['end_us'] - gaps[0]['start_us']:.1f} \u00b5s)"]


def test_labels_stay_within_their_bars():
    figure = timeline_figure(step(2), [], "d12")
    renderer = drawn(figure)
    for axes in figure.axes:
        edges = [path.get_extents(bar.get_transform()) for bar in axes.collections for path in bar.get_paths()]
        for text in axes.texts:
            box = text.get_window_extent(renderer)
            inside = [e.x0 - 1 <= box.x0 and box.x1 <= e.x1 + 1 and e.y0 - 1 <= box.y0 and box.y1 <= e.y1 + 1 for e in edges]
            assert any(inside), text.get_text()


@pytest.mark.parametrize(
    "spans",
    [[], [Span("new", "compute", None, 0.0, 0.0)], [Span("new", "odd lane", 3, 5.0, 6.0)], [Span("qkv", "compute", 0, 0.0, 1e-3)],
     [Span("upload inputs", "inputs", None, -50.0, -10.0)]],
    ids=["none", "empty", "unknown", "short", "before"],
)  # fmt: skip
def test_any_step_is_drawn(spans):
    canvas = FigureCanvasAgg(timeline_figure(spans, analyse(spans)["gaps"], "t", "s"))
    canvas.draw()


def test_only_gaps_that_stand_out_are_numbered():
    def gap(start, us):
        return {"start_us": start, "end_us": start + us, "after": None, "before": None}

    usual = [gap(1000.0 * i, 2.0) for i in range(20)]
    listed = [gap(5000.0, 300.0), gap(5100.0, 200.0), gap(15000.0, 100.0), gap(700.0, 5.0), *usual]
    assert notable(listed, 20.0) == [listed[0], listed[2]]
    assert notable([], 1.0) == [] and notable([gap(0.0, 50.0)], 1.0) == [gap(0.0, 50.0)]


def test_kinds_have_colours_of_their_own():
    assert len(set(COLOURS.values())) == len(COLOURS) and colour_of("new") == UNKNOWN


# -- roofline and floor


def test_roofline_points_and_labels():
    rows = op_rows(step())
    figure = roofline_figure(rows, BEST, "d12", "a device")
    renderer = drawn(figure)
    left, right = figure.axes
    counted = [row for row in rows if row["tflops"]]
    points = left.collections[0].get_offsets()
    assert np.allclose(points, [(row["flops"] / row["bytes"], row["tflops"]) for row in counted])
    labels = [text for text in left.texts if re.match(r"(\w| )+  [\d.]+$", text.get_text())]
    assert sorted(label.get_text().rsplit("  ")[0] for label in labels) == sorted(row["op"] for row in counted)
    boxes = [label.get_bbox_patch().get_window_extent(renderer) for label in labels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert {"large product 700 TFLOP/s", "copy 4 TB/s"} <= set(texts_of(left))
    roof = left.get_lines()[0]
    assert roof.get_ydata()[1:].tolist() == [700, 700] and roof.get_xdata()[1] == 175
    assert [label.get_text() for label in right.get_yticklabels()] == [
        row["op"] for row in sorted(rows, key=lambda row: row["tb_s"] or 0) if row["tb_s"] and not row["tflops"]
    ]
    assert right.get_lines()[0].get_xdata()[0] == 4


@pytest.mark.parametrize(
    "chosen", [lambda row: False, lambda row: row["op"] == "qkv", lambda row: not row["tflops"]], ids=["none", "one", "bytes"]
)
@pytest.mark.parametrize("best", [None, BEST, {"copy_tb_s": 0.02, "product_tflops": 0.1, "how": ""}], ids=["unknown", "gpu", "cpu"])
def test_any_roofline_is_drawn(chosen, best):
    drawn(roofline_figure(list(filter(chosen, op_rows(step()))), best, "t", "s"))


def test_floor_bars_add_up_to_the_time():
    rows = op_rows(step())
    figure = floor_figure(rows, "d12", "a device")
    drawn(figure)
    axes = figure.axes[0]
    known = sorted((row for row in rows if row["above_ms"] is not None), key=lambda row: -row["above_ms"])[:20]
    assert [label.get_text() for label in axes.get_yticklabels()] == [row["op"] for row in known]
    full, pale = axes.containers
    for row, below, above in zip(known, full, pale, strict=True):
        assert below.get_width() + above.get_width() == pytest.approx(row["ms"])
        assert below.get_width() == pytest.approx(min(row["floor_ms"], row["ms"]))
    assert floor_figure(op_rows(step(), None)) is None


@given(st.lists(st.floats(0, 1), max_size=25).map(sorted), st.floats(0.001, 0.04))
def test_spread_keeps_order_and_distance(wanted, pitch):
    found = spread(np.array(wanted), pitch, 0.0, 1.0)
    assert len(found) == len(wanted) and (np.diff(found) >= pitch - 1e-9).all()
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in found)
    if len(wanted) == 1:
        assert found[0] == pytest.approx(wanted[0])


# -- memory


def plans(totals):
    """Memory plans that differ in their activations; totals in GiB."""
    fixed = {"parameters": 0.2, "gradients": 0.2, "optimizer": 1.2, "activations": 0, "logits": 0.5, "workspace": 0.3, "batches": 0.0}
    plan = {name: int(gib * GIB) for name, gib in fixed.items()}
    return [{**plan, "activations": int((total - 2.4) * GIB), "total": int(total * GIB)} for total in totals]


def test_memory_bars_add_up():
    found = plans([10.0, 7.0, 5.0])
    figure = memory_figure({"recompute": 1, "device_total": 141 * GIB, "plans": found}, "d12", "a device")
    drawn(figure)
    axes = figure.axes[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(found[0])[:7]
    widths = Counter()
    for bar in (bar for container in axes.containers for bar in container):
        widths[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
    assert {row: round(width, 6) for row, width in widths.items()} == {0: 10, 1: 7, 2: 5}
    assert {"10.0 GiB", "7.0 GiB", "5.0 GiB"} <= set(texts_of(axes))
    assert [label.get_fontweight() for label in axes.get_yticklabels()] == ["normal", "bold", "normal"]

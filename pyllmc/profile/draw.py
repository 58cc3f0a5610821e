"""Writes a profile's files: pictures, the page to zoom into, the trace, and the JSON they can be drawn from."""

from pathlib import Path

from ..atomic import atomic_write
from . import document, report, timeline_html, trace_event


def write_all(profile, folder):
    """Write profile.json and everything drawn from it into the folder; returns (paths, notes)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    document.write(profile, folder / "profile.json")
    paths, notes = draw_all(profile, folder)
    return [folder / "profile.json", *paths], notes


def draw_all(profile, folder):
    """(paths written, notes): trace.json, timeline.html, and the pictures where matplotlib is there."""
    folder = Path(folder)
    spans, gaps = document.spans_of(profile), profile["analysis"]["gaps"]
    title, subtitle = report.title(profile), report.subtitle(profile)
    tables = [report.lane_table(profile), report.op_table(profile), report.memory_table(profile)]
    if profile["kernels"]:
        tables.insert(2, report.kernel_table(profile))
    texts = {
        "trace.json": trace_event.to_json(spans, title, gaps),
        "timeline.html": timeline_html.page(spans, gaps, title, subtitle, tables),
    }
    paths = []
    for name, text in texts.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())
        paths.append(folder / name)
    try:
        found = figures(profile)
    except ImportError as error:
        return paths, [f"no pictures were drawn: {error}"]
    for name, figure in found.items():
        _write_png(figure, folder / name)
        paths.append(folder / name)
    return paths, []


def figures(profile):
    """{file name: Figure}. Raises ImportError without matplotlib."""
    from .memory_figure import memory_figure
    from .roofline_figure import floor_figure, roofline_figure
    from .timeline_figure import timeline_figure

    title, subtitle = report.title(profile), report.subtitle(profile)
    found = {
        "timeline.png": timeline_figure(document.spans_of(profile), profile["analysis"]["gaps"], title, subtitle),
        "roofline.png": roofline_figure(profile["ops"], profile["ceilings"], title, subtitle),
        "floor.png": floor_figure(profile["ops"], title, subtitle),
        "memory.png": memory_figure(profile["memory"], title, profile["conditions"]["device"]),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def _write_png(figure, path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with atomic_write(path) as file:
        FigureCanvasAgg(figure).print_png(file)

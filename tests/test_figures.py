"""The picture of a run: every odd log still gives one (PLT-05)."""

import json
import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pyllmc.curves import running_mean
from pyllmc.figures import draw_run
from pyllmc.figures import run_figure as figure_of
from pyllmc.history import History


def run_figure(records, *more):
    return figure_of(History.from_records(records, "run"), *more)


def logged(losses, vals=()):
    records = [{"kind": "train", "step": i, "loss": x, "ms": 5.0 + i, "skipped": None} for i, x in enumerate(losses)]
    return records + [{"kind": "val", "step": i, "val_loss": x} for i, x in vals]


@pytest.mark.parametrize(
    "records",
    [[], logged([3.0]), logged([None, None]), logged([3.0, None, 2.0], [(0, 3.1), (2, None)]), logged([], [(0, 1.0)]),
     logged([0.0, 0.0]), logged([1e30, 2.0]), [{"kind": "train", "step": 0}], logged(list(np.linspace(5, 2, 500)))],
    ids=["none", "one", "all-nan", "gaps", "only-val", "zeros", "huge", "bare", "many"],
)  # fmt: skip
@pytest.mark.parametrize("unigram", [None, 3.2])
def test_any_history_is_drawn(records, unigram):
    figure = run_figure(records, unigram, "title")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    assert (pixels != 255).any(axis=-1).mean() > 0.005


def test_gaps_are_gaps_and_marked():
    records = logged([3.0, None, 2.0, 1.0])
    records[3]["skipped"] = "loss is an outlier"
    upper = run_figure(records).axes[0]
    lines = {line.get_label(): line for line in upper.get_lines()}
    assert np.isnan(lines["run: training"].get_ydata()[1])
    assert list(lines["run: skipped or not finite"].get_xdata()) == [1, 3]


def test_unigram_line_and_validation_are_in_the_legend():
    upper = run_figure(logged([3.0, 2.0, 1.5], [(0, 3.0), (2, 1.6)]), 2.5).axes[0]
    assert [text.get_text() for text in upper.get_legend().get_texts()] == [
        "training", "validation", "unigram entropy of the text",
    ]  # fmt: skip


def test_running_mean():
    values = np.sin(np.arange(300.0))
    values[100] = math.nan
    smooth = running_mean(values)
    assert np.isnan(smooth[100]) and np.isfinite(np.delete(smooth, 100)).all()
    half = 300 // 60
    assert smooth[200] == pytest.approx(values[200 - half : 201 + half].mean())
    assert smooth[101] == pytest.approx(np.nanmean(values[101 - half : 102 + half]))


def test_a_log_that_was_cut_off(tmp_path):
    whole = "\n".join(map(json.dumps, logged([3.0, 2.0, 1.0])))
    (tmp_path / "log.jsonl").write_text(whole + '\n{"kind": "train", "step": 3, "lo')
    path = draw_run(tmp_path, 2.0)
    assert path == tmp_path / "run.png" and path.stat().st_size > 1000

"""The picture of a run: every odd log still gives one (PLT-05)."""

import json
import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pyllmc.curves import running_mean
from pyllmc.figures import draw_run, runs_figure
from pyllmc.figures import run_figure as figure_of
from pyllmc.history import History
from pyllmc.picture_file import save


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


# -- pictures of one run or several, by their structure --------------------------------------------


def full(name, n=100, ms=5.0, start=0, **more):
    """A History with everything but evaluations."""
    records = [{"kind": "train", "step": i, "loss": 5 - i / n, "norm": 1 + i % 3, "lr": 1e-3, "ms": ms + i % 4, "tok_s": 1e3,
                "skipped": None, **more} for i in range(start, n)]  # fmt: skip
    records += [{"kind": "val", "step": i, "val_loss": 5 - i / n} for i in range(start, n, 25)]
    return History.from_records(records, name)


def bare(name, evaluations=False):
    """A History as main.log gives it: without times."""
    records = [{"kind": "train", "step": i, "loss": 4.0, "norm": 1.0, "lr": 1e-3} for i in range(80)]
    records += [{"kind": "eval", "step": i, "accuracy": 0.26} for i in range(0, 80, 20) if evaluations]
    return History.from_records(records, name, "main.log")


def panels_of(figure):
    FigureCanvasAgg(figure).draw()
    return {axes.get_label(): axes for axes in figure.axes}


def said(axes):
    """Texts of a legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []


def lines_of(axes, ending):
    return [line for line in axes.get_lines() if line.get_label().endswith(ending)]


def test_one_run_has_every_panel_that_it_has_data_for():
    panels = panels_of(runs_figure([full("a")]))
    assert list(panels) == ["loss", "norm", "lr", "time", "tok_s", "hist"]
    assert [panels[name].get_ylabel() for name in panels] == [
        "loss (nats per token)", "gradient norm", "learning rate", "ms per step", "tokens per second", "share of steps (%)",
    ]  # fmt: skip
    assert said(panels["loss"]) == ["training (mean of neighbours)", "validation"]
    assert said(panels["time"]) == ["median 6.5 ms"] and said(panels["tok_s"]) == ["median 1.0k tok/s"]
    assert said(panels["hist"]) == ["6.5 [5, 8]"]
    assert panels["hist"].get_legend().get_title().get_text() == "median [5%, 95%] in ms"
    train, val = lines_of(panels["loss"], "neighbours)") + lines_of(panels["loss"], "validation")
    assert train.get_color() != val.get_color() and val.get_marker() == "o" and train.get_marker() != "o"
    assert list(panels_of(runs_figure([bare("a")]))) == ["loss", "norm", "lr"]


def test_several_runs_lie_over_each_other():
    panels = panels_of(runs_figure([full("a"), full("b", ms=9.0), bare("c", evaluations=True)]))
    assert list(panels) == ["loss", "eval", "norm", "lr", "time", "tok_s", "hist"]
    assert said(panels["loss"]) == ["a", "b", "c", "validation"]
    colours = [line.get_color() for line in lines_of(panels["loss"], "neighbours)")]
    assert colours == ["#0072B2", "#D55E00", "#009E73"]
    assert [line.get_color() for line in lines_of(panels["loss"], "validation")] == colours[:2]
    assert said(panels["time"]) == ["median 6.5 ms", "median 10.5 ms", "c: no step times in main.log"]
    assert said(panels["hist"]) == ["6.5 [5, 8]", "10.5 [9, 12]", "c: no step times in main.log"]
    assert said(panels["tok_s"])[-1] == "c: no tokens per second in main.log"
    assert said(panels["eval"]) == ["guessing", "a: no evaluations in log.jsonl", "b: no evaluations in log.jsonl"]
    assert lines_of(panels["eval"], "guessing")[0].get_ydata()[0] == 0.25
    edges = {tuple(patch.get_data().edges) for patch in panels["hist"].patches}
    assert len(edges) == 1  # shared bins
    shares = [patch.get_data().values.sum() for patch in panels["hist"].patches]
    assert shares == pytest.approx([100] * 4)  # two runs, outline and fill
    assert [line.get_xdata()[0] for line in lines_of(panels["hist"], "median")] == [6.5, 10.5]


def test_many_runs_are_told_apart_and_named_beside_the_panel():
    names = [f"run {i}" for i in range(20)]
    panels = panels_of(runs_figure([full(name) for name in names[:-3]] + [bare(name) for name in names[-3:]]))
    assert said(panels["loss"]) == [*names, "validation"]
    looks = [(line.get_color(), line.get_linestyle(), getattr(line, "_unscaled_dash_pattern", None))
             for line in lines_of(panels["loss"], "neighbours)")]  # fmt: skip
    assert len(set(looks)) == 20
    for name in ("loss", "hist"):  # nothing is hidden behind the legend
        axes = panels[name]
        assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
        assert axes.get_legend().get_window_extent().x1 <= axes.figure.bbox.x1
    assert said(panels["time"]) == ["3 runs: no step times"]


def test_chosen_panels_and_axes():
    runs = [full("a"), full("b", start=5), bare("c")]
    panels = panels_of(runs_figure(runs, ("hist", "time", "eval"), x="tokens"))
    assert list(panels) == ["hist", "time"]
    assert said(panels["time"]) == ["a", "b", "c", "median 6.5 ms", "median 7 ms", "c: no token counts in main.log",
                                    "c: no step times in main.log"]  # fmt: skip
    panels = panels_of(runs_figure(runs, ("eval",), x="time"))
    assert list(panels) == ["loss"] and "c: no step times in main.log" in said(panels["loss"])
    assert panels["loss"].get_xlabel() == "seconds of training"
    # each step is 5 to 8 ms; step 5 of the run that begins there stands where five median steps end
    line = lines_of(panels["loss"], "b: training (mean of neighbours)")[0]
    assert line.get_xdata()[0] == pytest.approx(5 * 6.5e-3, rel=0.1)
    assert runs_figure([bare("c")], x="tokens").axes[0].get_xlabel() == "tokens trained on"


def test_smoothing_is_a_choice():
    values = {}
    for smooth in (0, 3, 21, "auto"):
        axes = runs_figure([full("a")], ("norm",), smooth=smooth).axes[0]
        values[smooth] = lines_of(axes, "training" if smooth == 0 else "neighbours)")[0].get_ydata()
        assert len(lines_of(axes, ": all")) == (smooth != 0)
    assert values[0].std() > values[3].std() and not np.array_equal(values[21], values["auto"])


@pytest.mark.parametrize("losses, note", [([0.0, 1.0, 2.0], "1 value of zero or less left out (log axis)"),
                                          ([0.0, 0.0], "nothing above zero: no log axis"), ([1.0, 2.0], None)])  # fmt: skip
def test_zeros_on_log_axes(losses, note):
    axes = panels_of(runs_figure([History.from_records(logged(losses))], ("loss",), log_x=True, log_y=True))["loss"]
    assert axes.get_yscale() == ("linear" if note and note.startswith("nothing") else "log")
    assert axes.get_xscale() == "symlog"  # step 0 has a place
    assert [text.get_text() for text in axes.texts] == [note] * bool(note)


def test_times_that_the_log_lacks_at_first_are_no_gaps():
    """As of the steps that llm.c's trainer made."""
    records = logged([2.0] * 6)
    for record in (*records[:2], records[4]):
        record["ms"] = None
    records[0]["norm"] = None
    for record in records[1:]:
        record["norm"] = 1.0
    panels = panels_of(runs_figure([History.from_records(records, "r")], ("time", "norm")))
    found = {name: [list(line.get_xdata()) for line in lines_of(panels[name], "not finite")] for name in panels}
    assert found == {"time": [[4]], "norm": [[0]]}


def test_resumed_skipped_and_missing_steps_are_marked():
    records = logged([float(i) for i in range(9)]) + logged([9.0] * 12)[5:]
    records[2]["loss"] = None
    records[-1]["skipped"] = "loss is an outlier"
    history = History.from_records(records, "r")
    alone = panels_of(runs_figure([history], ("loss",)))["loss"]
    (crosses,), (triangles,) = lines_of(alone, "not finite"), lines_of(alone, "logged again")
    assert list(crosses.get_xdata()) == [2, 11] and list(triangles.get_xdata()) == [5]
    assert said(alone) == ["training", "skipped or not finite", "resumed: steps logged again"]
    both = panels_of(runs_figure([history, full("b")], ("loss",)))["loss"]
    assert said(both) == ["r", "b", "validation", "skipped or not finite", "resumed: steps logged again"]
    assert lines_of(both, "not finite")[0].get_color() == lines_of(both, "r: training")[0].get_color()


def test_points_between_gaps_are_visible():
    axes = runs_figure([History.from_records(logged([3.0, None, 2.0, None, 1.0, 1.0]))], ("loss",)).axes[0]
    (dots,) = lines_of(axes, "single points")
    assert list(dots.get_xdata()) == [0, 2] and dots.get_marker() == "o"


def test_an_absurd_value_does_not_flatten_the_rest():
    losses = list(np.linspace(5, 2, 300))
    losses[150] = 1e30
    axes = panels_of(runs_figure([History.from_records(logged(losses))], ("loss",), smooth=0))["loss"]
    low, high = axes.get_ylim()
    assert 1 < low < 2 and 5 < high < 10
    assert [text.get_text() for text in axes.texts] == ["1 above, up to 1e+30"]


def test_slow_steps_are_counted_not_dropped():
    history = full("a")
    history.ms[0] = 900.0
    panels = panels_of(runs_figure([history], ("time", "hist")))
    assert panels["time"].get_ylim()[0] == 0 and panels["time"].get_ylim()[1] < 20
    assert panels["time"].texts[0].get_text() == "1 above, up to 900 ms"
    assert panels["hist"].texts[0].get_text() == "1 beyond, up to 900 ms"
    assert panels["hist"].patches[0].get_data().values.sum() == pytest.approx(99)


def test_runs_of_very_different_speed_share_a_log_histogram():
    panels = panels_of(runs_figure([full("a", ms=8.0), full("b", ms=1500.0)], ("hist",)))
    assert panels["hist"].get_xscale() == "log"
    for patch in panels["hist"].patches:
        assert np.count_nonzero(patch.get_data().values) >= 1
    constant = History.from_records({"kind": "train", "step": i, "loss": 1.0, "ms": 5.0} for i in range(3))
    assert panels_of(runs_figure([constant], ("hist",)))["hist"].get_xscale() == "linear"


@pytest.mark.parametrize("name", ["_hidden", "a$b$c_", r"$\frac$", "x" * 300, "\n\t\x07", "\udcff", "雪", "", "100%"])
@pytest.mark.filterwarnings("error")
def test_any_name_is_shown_as_it_is(tmp_path, name):
    figure = runs_figure([full(name), full("other")], ("loss",))
    save(figure, tmp_path / "x.svg")
    names = said(figure.axes[0])
    shown = names[0]
    assert len(names) == 3 and len(shown) <= 50
    if name.isascii() and name.isprintable() and len(name) < 40:
        assert shown.replace("\\$", "$") == name
    save(runs_figure([full(name)], ("loss",), title=name), tmp_path / "y.png")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("x, log_x, log_y", [("steps", 0, 0), ("steps", 1, 1), ("tokens", 1, 0), ("time", 1, 1)])
def test_any_set_of_histories_is_drawn(x, log_x, log_y):
    odd = [[], logged([3.0]), logged([None] * 4), logged([0.0, 0.0]), logged([], [(0, 1.0)]), logged([-1.0, 1e30, 1e-30]),
           [{"kind": "train", "step": 2**52, "loss": 1.0, "ms": -1.0, "tok_s": 0.0}],
           [{"kind": "train", "step": 7, "ms": 1e308, "tok_s": 1e308, "norm": 1e308, "lr": 1e-308}],
           [{"kind": "train", "step": 7, "ms": 1e38, "tok_s": 1e38, "norm": 1e38, "lr": -1e38}]]  # fmt: skip
    histories = [History.from_records(records, f"h{i}") for i, records in enumerate(odd)]
    for chosen in [*([history] for history in histories), histories]:
        panels_of(runs_figure(chosen, x=x, log_x=log_x, log_y=log_y))

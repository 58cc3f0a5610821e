"""The picture of an A/B by its structure: rows, labels, counts of points and stripes. No pixels are compared."""

import json

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pyllmc.ab import command, picture, record


def comparison(letter="B", ratio=(1.02, 1.01, 1.03), at=None, beyond=None, step_ms=(10.0, 10.2), label="streams=1", blocks=4):
    sides = {
        name: {"label": text, "text": text, "tokens": 64, "tokens_per_s": 6400.0}
        for name, text in (("A", "all defaults"), ("B", label))
    }
    order = ("ABBA" * blocks)[:blocks]
    ratio = dict(zip(("ratio", "low", "high"), ratio or (None,) * 3, strict=True))
    ratio.update(rounds=4, verdict="slower", words="slower by 2.0% [1.0, 3.0]", per="step")
    return {
        "letter": letter, "at": at or {}, "sides": sides, "ratio": ratio, "losses": {"beyond": beyond},
        "blocks": [
            {"side": name, "round": i // 4, "step_ms": list(step_ms), "wall_ms": 10.1} for i, name in enumerate(order)
        ],
    }  # fmt: skip


def result(*comparisons, **changes):
    work = {"model": "d12", "batch": 4, "seq_len": 1024, "sweep": None}
    return {"kind": record.KIND, "version": record.VERSION, "complete": True, "stopped": None, "workload": work,
            "conditions": {"device": "NVIDIA H200"}, "comparisons": list(comparisons), **changes}  # fmt: skip


def drawn(found):
    """The figure, rendered without an exception or a warning, and its axes."""
    figure = picture.figure_of(found)
    FigureCanvasAgg(figure).draw()
    return figure, figure.axes


def texts(axes):
    return [text.get_text() for text in axes.texts]


def marked(axes, gid):
    return [artist for artist in (*axes.get_lines(), *axes.patches) if artist.get_gid() == gid]


def test_a_row_for_each_side_and_a_point_for_each_step():
    figure, (ratios, steps) = drawn(result(comparison("B"), comparison("C", (0.9, 0.88, 0.92), label="graph=off")))
    assert [label.get_text() for label in ratios.get_yticklabels()] == ["B  streams=1", "C  graph=off"]
    points = [line for line in ratios.get_lines() if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in points] == [1.02, 0.9]
    assert list(ratios.get_lines()[0].get_xdata()) == [1.01, 1.03]
    assert any(list(line.get_xdata()) == [1, 1] for line in ratios.get_lines())  # where neither is faster
    assert texts(ratios)[:2] == ["slower by 2.0% [1.0, 3.0]"] * 2 and any("faster" in text for text in texts(ratios)[2:])
    low, high = ratios.get_xlim()
    assert low < 0.88 and high > 1.03
    assert len(marked(steps, "block")) == len(marked(steps, "mean")) == 8
    assert sum(len(line.get_xdata()) for line in marked(steps, "steps")) == 16
    assert [text.get_text() for text in steps.get_legend().get_texts()] == ["A  all defaults", "B  streams=1", "C  graph=off"]
    assert texts(steps)[:2] == ["A B", "A C"]
    assert "d12, B=4, T=1024 on NVIDIA H200" in figure.get_suptitle()


def test_points_stand_in_order_of_measurement():
    _, (_, steps) = drawn(result(comparison(blocks=4)))
    a, b = marked(steps, "steps")
    assert list(a.get_xdata()) == [0, 1, 6, 7] and list(b.get_xdata()) == [2, 3, 4, 5]  # ABBA, two steps each
    edges = [(span.get_x(), span.get_x() + span.get_width()) for span in marked(steps, "block")]
    assert edges == [(-0.5, 1.5), (1.5, 3.5), (3.5, 5.5), (5.5, 7.5)]


def test_losses_that_differ_and_runs_cut_off_are_in_the_picture():
    figure, (ratios, _) = drawn(result(comparison(beyond=3)))
    assert "LOSSES DIFFER" in texts(ratios)[0] and "LOSSES DIFFER" in figure.get_suptitle()
    figure, _ = drawn(result(comparison(), complete=False, stopped="interrupted"))
    assert "INCOMPLETE: interrupted" in figure.get_suptitle()


def test_a_sweep():
    points = [comparison(letter, (1 + 0.01 * n, 0.99, 1.05), {"batch": 2**n}, step_ms=(10.0 * 2**n,) * 2)
              for n in range(4) for letter in "BC"]  # fmt: skip
    found = result(*points)
    found["workload"] = {**found["workload"], "sweep": "batch=1,2,4,8"}
    figure, (ratios, speeds, steps) = drawn(found)
    for axes in (ratios, speeds):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4", "8"] and axes.get_xlabel() == "batch"
    assert len([line for line in ratios.get_lines() if line.get_marker() == "o" and len(line.get_xdata()) == 4]) == 2
    assert len(speeds.get_lines()) == 3  # A, B, C
    assert steps.get_yscale() == "log" and len(marked(steps, "block")) == 32
    assert "B=1,2,4,8, T=1024" in figure.get_suptitle()


def test_sweep_of_one_side_alone():
    alone = []
    for n in (1, 2):
        one = comparison(at={"batch": n})
        del one["sides"]["B"]
        one.update(letter=None, ratio=None, losses=None, blocks=[b for b in one["blocks"] if b["side"] == "A"])
        alone.append(one)
    _, axes = drawn(result(*alone))
    assert len(axes) == 2 and len(axes[0].get_lines()) == 1


@pytest.mark.parametrize(
    "found",
    [result(), result(comparison(ratio=None)), result(comparison(ratio=(1.0, None, None))), result(comparison(step_ms=())),
     result(comparison(step_ms=(None, 10.0))), result(comparison(step_ms=(None,))), result(comparison(step_ms=(0.0, 0.0))),
     result(comparison(step_ms=(10.0, 1e6))), result(comparison(ratio=(1.0, 1.0, 1.0))), result(comparison(ratio=(5.0, 1e-3, 1e3))),
     result(comparison(label="x" * 300)), result(comparison(blocks=0)), result(comparison(blocks=1))],
    ids=["nothing", "no-ratio", "no-interval", "no-steps", "a-gap", "all-gaps", "zeros", "outlier", "no-width", "wide", "long-name",
         "no-blocks", "one-block"],
)  # fmt: skip
def test_any_result_is_drawn(found, recwarn):
    """PLT-05."""
    figure, _ = drawn(found)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert (np.asarray(canvas.buffer_rgba())[..., :3] != 255).any()
    assert [str(warning.message) for warning in recwarn] == []


def test_many_sides_have_letters_instead_of_a_legend():
    _, (ratios, steps) = drawn(result(*(comparison(letter) for letter in "BCDEFGHIJKL")))
    assert len(ratios.get_yticklabels()) == 11 and steps.get_legend() is None
    assert texts(steps)[:2] == ["A B", "A C"]


def test_outliers_are_counted_and_not_drawn_to_scale():
    one = comparison(step_ms=[10.0] * 99 + [500.0])
    _, (_, steps) = drawn(result(one))
    assert steps.get_ylim()[1] < 20 and any("4 steps above, up to 500 ms" in text for text in texts(steps))


def test_redrawing(tmp_path, capsys, monkeypatch):
    """PLT-01: without a display, and the user's back end stays."""
    import matplotlib

    monkeypatch.delenv("DISPLAY", raising=False)
    before = matplotlib.rcParams["backend"]
    record.write(tmp_path / "r.json", result(comparison()))
    assert command.main(["--draw", str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr().out == f"picture: {tmp_path / 'r.png'}\n"
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG") and matplotlib.rcParams["backend"] == before
    broken = result(comparison())
    del broken["comparisons"][0]["blocks"]
    (tmp_path / "b.json").write_text(json.dumps(broken))
    assert command.main(["--draw", str(tmp_path / "b.json")]) == 2
    assert "not a whole result" in capsys.readouterr().err and not (tmp_path / "b.png").exists()

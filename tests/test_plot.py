"""python -m pyllmc.plot: what it draws, says and refuses (PLT-01, PLT-03, PLT-05)."""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from test_history import resumed_twice, train, write_json
from test_native import run_python

from pyllmc import plot
from pyllmc.cli import Parser
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.history import read_history
from pyllmc.picture_file import own_settings
from pyllmc.plot_options import GROUPS, PANELS

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with runs a, b (log.jsonl) and c (main.log)."""
    monkeypatch.chdir(tmp_path)
    for name, ms in (("a", 5.0), ("b", 8.0)):
        records = [train(i, 4 - i / 50, norm=1.0, lr=1e-3, ms=ms + i % 3, tok_s=64e3 / (ms + i % 3)) for i in range(70)]
        records += [{"kind": "val", "step": i, "val_loss": 4.5 - i / 50} for i in (0, 35, 70)]
        write_json(tmp_path / name, records)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "main.log").write_text(
        "s:0 tel:9.0000\n" + "".join(f"s:{i} trl:{9 - i / 100:.4f} lr:0.001000 norm:2.00\n" for i in range(70))
    )
    return tmp_path


def call(capsys, *argv):
    """(exit status, stdout, stderr) of the command, in this process."""
    try:
        status = plot.main([str(word) for word in argv])
    except SystemExit as ended:  # argparse
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_one_run(here, capsys):
    status, out, err = call(capsys, "a")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "run  steps    loss  best val  at step  median ms  tok/s",
        "a       70  2.6200    3.1000       70          6  10.7k",
        "picture: a/plot.png",
    ]
    assert (here / "a" / "plot.png").read_bytes().startswith(PNG)
    assert call(capsys, "a/log.jsonl")[1].endswith("picture: a/plot.png\n")


def test_several_runs(here, capsys):
    status, out, _ = call(capsys, "a", "-o", "all.svg", "b", "c", "--labels", "one, two,$3_", "--x", "tokens", "--log-y")
    assert status == 0
    assert [line.split() for line in out.splitlines()[1:4]] == [
        ["one", "70", "2.6200", "3.1000", "70", "6", "10.7k"], ["two", "70", "2.6200", "3.1000", "70", "9", "7.1k"],
        ["$3_", "70", "8.3100", "9.0000", "0", "n/a", "n/a"],
    ]  # fmt: skip
    assert ET.parse(here / "all.svg").getroot().tag.endswith("svg")
    assert call(capsys, "a", "b")[1].endswith("picture: plot.png\n") and (here / "plot.png").exists()


def test_summary_as_json(here, capsys):
    status, out, err = call(capsys, "a", "c", "--json", "-o", "x.png")
    found = json.loads(out)
    assert (status, err, found["picture"]) == (0, "", "x.png")
    assert found["runs"][1] == {
        "run": "c", "source": "main.log", "steps": 70, "loss": 8.31, "best_val_loss": 9.0, "best_val_step": 0,
        "median_ms": None, "median_tok_s": None, "notes": [],
    }  # fmt: skip
    assert found["runs"][0]["median_ms"] == 6


def test_notes_on_logs(here, capsys):
    write_json(here / "r", resumed_twice(), '\n{"step": 3, "ki')
    status, out, _ = call(capsys, "r", "a", "r/log.jsonl")
    assert status == 0 and out.splitlines()[3:] == [
        "note: r: the last line of log.jsonl is cut off",
        "note: r: resumed at 200, 220: 24 earlier steps replaced",
        "note: r: given twice, drawn once",
        "picture: plot.png",
    ]


def test_names_of_runs(here):
    write_json(here / "x" / "a", [train(0, 1.0)])
    names = [history.name for history in plot.histories_of(["a", "x/a", "x/a/log.jsonl", "b/log.jsonl"])]
    assert names == ["a", "x/a", "b"]
    assert [history.name for history in plot.histories_of(["a", "b"], ("1", "2"))] == ["1", "2"]


@pytest.mark.parametrize(
    "text", ["", "\n", "{}\n", "garbage\n" * 3, '{"step": 0, "kind": "train", "loss": NaN}\n',
             '{"step": 0, "kind": "train", "loss": Infinity, "ms": 0}\n', '{"step": 5, "kind": "train", "loss": 0}\n', "s:0 tel:1.0"],
    ids=["empty", "newline", "odd", "garbage", "nan", "inf", "one", "cut"],
)  # fmt: skip
def test_any_log_gives_a_picture(here, capsys, text):
    (here / "odd").mkdir()
    (here / "odd" / "log.jsonl").write_text(text)
    for words in ("odd", "odd a --log-x --log-y --x time"):
        status, out, err = call(capsys, *words.split(), "-o", "odd.png")
        assert (status, err) == (0, "") and out.endswith("picture: odd.png\n")
        assert (here / "odd.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "words, part",
    [("", "required: RUN"), ("none", "none: no such file"), (".", r"no run in the folder \.: looked for log.jsonl and main.log"),
     ("a -o x.pdf", r"x.pdf has the suffix '.pdf': pictures are written as .png or .svg"), ("a -o x", "x has no suffix"),
     ("a -o none/x.png", "there is no folder none"), ("a -o dir.png", "dir.png: it is a folder"),
     ("text", "text: expected a log.jsonl, a main.log or what llm.c's trainer printed"), ("a --labels x,y", "2 labels for 1 runs"),
     ("a --panels loss,tims", "unknown name 'tims', did you mean 'time'"), ("a --x hours", "known: steps, tokens, time"),
     ("a --smooth -1", "from 0 on, got '-1'"), ("a --smooth many", "got 'many'"), ("a --smoth 3", "did you mean '--smooth'"),
     ("a -o", "expected one argument"), ("a --panels ,", "unknown name ''")],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(here, capsys, words, part):
    (here / "text").write_text("so it goes\n")
    (here / "dir.png").mkdir()
    before = sorted(here.rglob("*"))
    status, out, err = call(capsys, *words.split())
    assert status == 2 and out == "" and re.search(part, err) and re.fullmatch(r"pyllmc\.plot: .+\n", err), err
    assert sorted(here.rglob("*")) == before


def test_a_picture_that_can_not_be_is_refused_before_long_logs_are_read(here, capsys, monkeypatch):
    monkeypatch.setattr(plot, "histories_of", lambda *_: pytest.fail("read"))
    assert call(capsys, "a", "-o", "none/x.png")[0] == 2
    with pytest.raises(InvalidArgument):
        plot.draw("a", "x.gif")


def test_a_folder_that_is_read_only(here, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    status, _, err = call(capsys, "a")
    assert status == 2 and err == "pyllmc.plot: can't write a/plot.png: no permission to make files in a\n"


def test_a_full_disk_leaves_the_old_picture(here, capsys, monkeypatch):
    (here / "x.png").write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = call(capsys, "a", "-o", "x.png")
    assert status == 2 and "x.png: no space left" in err and err.count("\n") == 1
    assert (here / "x.png").read_bytes() == b"old" and not list(here.glob(".x.png*"))


@pytest.mark.parametrize("backend", ["TkAgg", "module://no.such.backend", "agg"])
def test_no_display_and_the_users_matplotlib_is_left_alone(here, backend):
    """PLT-01: neither a display, nor the user's back end, nor the user's matplotlibrc has a say."""
    (here / "matplotlibrc").write_text("text.usetex: True\naxes.facecolor: black\nfigure.dpi: 7\n")
    code = (
        "import sys, matplotlib as m; from pyllmc import plot; before = m.rcParams.copy();"
        "status = plot.main(sys.argv[1:]); assert m.rcParams == before, 'changed';"
        "assert 'matplotlib.pyplot' not in sys.modules; sys.exit(status)"
    )
    runs = here / "a", here / "b", "-o"
    done = run_python(code, *runs, here / "x.png", DISPLAY="", MPLBACKEND=backend, MATPLOTLIBRC=str(here / "matplotlibrc"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    user = (here / "x.png").read_bytes()
    done = run_python("import sys; from pyllmc import plot; sys.exit(plot.main(sys.argv[1:]))", *runs, here / "y.png")
    assert done.returncode == 0 and (here / "y.png").read_bytes() == user


def test_same_run_same_bytes(here):
    pictures = [plot.draw("a", here / f"{i}.svg").read_bytes() for i in range(2)]
    assert pictures[0] == pictures[1]


def test_without_matplotlib_there_is_one_sentence(here, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib" or name in DRAWING]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr("pyllmc.figures", raising=False)
    status, out, err = call(capsys, "a")
    assert status == 2 and out == "" and re.fullmatch(r"pyllmc.plot: drawing needs matplotlib, .*\n", err), err
    assert not (here / "a" / "plot.png").exists()


DRAWING = ["pyllmc.figures", "pyllmc.panels", "pyllmc.panel", "pyllmc.trace", "pyllmc.figure_style"]


def test_from_python(here):
    assert plot.draw("a") == (here / "a" / "plot.png").relative_to(here)
    history = read_history("a")
    history.name = "by hand"
    assert plot.draw([history, "b"], "x.PNG", panels=["hist"], smooth=0).exists()
    for bad, error in (
        ({"panels": ["hits"]}, InvalidArgument), ({"x": "hour"}, InvalidArgument), ({"smooth": -1}, InvalidArgument),
        ({"smooth": 1.5}, InvalidArgument), ({"labels": ["p", "q"]}, InvalidArgument), ({"path": "x.jpg"}, InvalidArgument),
        ({"runs": []}, InvalidArgument), ({"runs": "x.PNG"}, FormatError), ({"colour": "red"}, TypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            plot.draw(**{"runs": "a", "path": "y.png", **bad})
    assert not (here / "y.png").exists()


def test_own_settings_end_with_the_block():
    """However it ends; and a back end that matplotlib hasn't chosen yet stays to be chosen."""
    from matplotlib import rcParams

    before = dict(dict.items(rcParams))  # asking rcParams itself would choose one
    with pytest.raises(ZeroDivisionError), own_settings():
        rcParams["lines.linewidth"] = 77
        1 / 0  # noqa: B018
    assert dict(dict.items(rcParams)) == before


def test_interruption_and_closed_output(here, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "picture", interrupt)
    status, _, err = call(capsys, "a")
    assert status == 130 and err == "\npyllmc.plot: interrupted; nothing was written\n"
    monkeypatch.undo()

    def closed(_):
        raise BrokenPipeError

    monkeypatch.chdir(here)
    monkeypatch.setattr(plot, "say", closed)
    status, _, err = call(capsys, "a")
    assert status == 141 and err.count("\n") == 1 and (here / "a" / "plot.png").exists()


def test_a_bar_only_for_big_logs_on_a_terminal(here, monkeypatch):
    seen = []
    monkeypatch.setattr(plot, "SLOW_BYTES", 100)
    monkeypatch.setattr("pyllmc.history.BLOCK", 1000)
    monkeypatch.setattr(plot, "has_size", lambda stream: True)
    monkeypatch.setattr(plot.tqdm, "update", lambda bar, n: seen.append((bar.total, n)))
    plot.histories_of(["a"], progress=plot.bar_for)
    size = os.path.getsize("a/log.jsonl")
    assert len(seen) > 3 and sum(n for _, n in seen) <= size and {total for total, _ in seen} == {size}
    monkeypatch.setattr(plot, "has_size", lambda stream: False)
    with plot.bar_for(here / "a" / "log.jsonl") as advance:
        assert advance is None


def test_help_is_the_table(capsys):
    """CLI-05: every flag of the table is in the help with its default, and is accepted."""
    text = re.sub(r"\s+", " ", Parser(GROUPS).format_help())
    rows = [row for rows in GROUPS.values() for row in rows]
    for row in rows:
        assert all(flag in text for flag in row.flags.split()) and row.help_text().replace("%%", "%") in text, row
    given = Parser(GROUPS).read(["r", "--panels", ",".join(PANELS), "--smooth", "3", "--log-x", "-o", "x.png", "s", "t"])
    assert given.runs == ["r", "s", "t"] and given.panels == PANELS and given.smooth == 3 and given.log_x and not given.log_y
    assert given.x == "steps" and Parser(GROUPS).read(["r"]).smooth == "auto"

"""Curves of runs: python -m pyllmc.plot, or pyllmc.plot.draw()."""

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .cli import Parser
from .console import has_size, one_line, say, short
from .errors import InvalidArgument, Unavailable
from .exits import status_of
from .history import History, find_logs, read_history
from .picture_file import check_picture, save
from .plot_options import AUTO, GROUPS, PANELS, axis_name, panel_names, window

PICTURE = "plot.png"
SLOW_BYTES = 20 << 20  # from which on a log takes long enough for a bar
DESCRIPTION = """Draw what runs have logged: loss, evaluations, gradient norm, learning rate, step times and speed,
several runs over each other. A log that ends early or holds NaN is drawn as far as it goes, its gaps marked. No
display is needed. Exit status: 0 done; 2 bad input; 130 interrupted; 141 nobody reads the output."""


def main(argv=None):
    """Draw as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog="python -m pyllmc.plot", description=DESCRIPTION)
    return status_of(
        "pyllmc.plot", lambda: run(parser.read(argv)), "interrupted; nothing was written",
        "nobody reads the output; the picture is written",
    )  # fmt: skip


def run(args):
    """Picture, then summary. Raises LlmcError or OSError for what can't be."""
    path = check_picture(args.output or default_picture(args.runs))
    histories = histories_of(args.runs, args.labels, bar_for)
    picture(histories, path, args.panels or PANELS, args.x, args.smooth, args.log_x, args.log_y)
    rows = [summary(history) for history in histories]
    if args.json:
        say(json.dumps({"picture": os.fspath(path), "runs": rows}, indent=2))
        return 0
    say(columns([HEADER, *map(words_of, rows)]))
    for row in rows:
        for note in row["notes"]:
            say(one_line(f"note: {row['run']}: {note}"))
    say(one_line(f"picture: {path}"))
    return 0


def draw(runs, path=None, *, labels=None, panels=PANELS, x="steps", smooth=AUTO, log_x=False, log_y=False):
    """Draw one run or several into one picture and return its Path.

    runs: a run folder, a log file or a History (see history.py), or a list of those. path: .png or .svg; None:
    plot.png in the run's folder, for several runs in the current one. labels: a name for each run. panels: some of
    plot_options.PANELS; what no run has data for is left out. x: "steps", "tokens", or "time", which is that of
    the steps alone. smooth: updates to average over, "auto", or 0. log_x, log_y: logarithmic axes.

    Raises InvalidArgument, FormatError or OSError for input or a path that won't do, Unavailable without
    matplotlib. Neither pyplot nor the user's back end or settings are touched.
    """
    runs = [runs] if isinstance(runs, (str, os.PathLike, History)) else list(runs)
    panels, x, smooth = panel_names(",".join(panels)), axis_name(x), window(str(smooth))
    path = check_picture(default_picture(runs) if path is None else path)
    return picture(histories_of(runs, labels), path, panels, x, smooth, log_x, log_y)


def picture(histories, path, panels, x, smooth, log_x, log_y):
    try:
        from .figures import runs_figure
    except ImportError as error:
        raise Unavailable(f"drawing needs matplotlib, which can't be imported: {error}") from None
    title = histories[0].name if len(histories) == 1 else ""
    return save(runs_figure(histories, panels, x=x, smooth=smooth, log_x=log_x, log_y=log_y, title=title), path)


def default_picture(runs):
    """Where the picture goes that nobody named."""
    if len(runs) != 1 or isinstance(runs[0], History):
        return Path(PICTURE)
    return (Path(runs[0]) if os.path.isdir(runs[0]) else Path(runs[0]).parent) / PICTURE


def histories_of(runs, labels=None, progress=None):
    """A History of each run, named as `labels` say, or apart: of folders with one name the whole path counts.

    A log that is given twice is read and drawn once. progress: see read_history, called with the path of the log.
    """
    if not runs:
        raise InvalidArgument("no run to draw: name a run folder or a log file")
    if labels is not None and len(labels) != len(runs):
        raise InvalidArgument(f"{len(labels)} labels for {len(runs)} runs: each needs one")
    histories = {}
    for number, given in enumerate(runs):
        key = number if isinstance(given, History) else find_logs(given)[0].resolve()
        if key in histories:
            histories[key].notes.append("given twice, drawn once")
            continue
        history = given if isinstance(given, History) else read_history(given, progress=progress)
        histories[key] = dataclasses.replace(history, notes=[*history.notes])
        if labels is not None:
            histories[key].name = labels[number]
        elif not isinstance(given, History) and history.name in [h.name for k, h in histories.items() if k != key]:
            histories[key].name = os.fspath(given)
    return list(histories.values())


@contextlib.contextmanager
def bar_for(path):
    """A function to call with the number of bytes read, which moves a bar where a big log meets a terminal."""
    size = os.path.getsize(path)
    if size < SLOW_BYTES or not has_size(sys.stderr):
        yield None
        return
    with tqdm(total=size, unit="B", unit_scale=True, leave=False, desc=path.name, dynamic_ncols=True) as bar:
        yield bar.update


# -- the summary -----------------------------------------------------------------------------------

HEADER = ("run", "steps", "loss", "best val", "at step", "median ms", "tok/s")


def summary(history):
    """What a run came to, None where its log doesn't tell: logged steps, the last loss, the lowest validation loss
    and its step, median ms and tokens per second."""
    val = np.where(np.isfinite(history.val_loss), history.val_loss, np.inf)
    best = int(val.argmin()) if val.size and np.isfinite(val).any() else None
    return {
        "run": history.name, "source": history.source, "steps": history.step.size,
        "loss": number(history.loss[-1:]), "best_val_loss": None if best is None else float(val[best]),
        "best_val_step": None if best is None else int(history.val_step[best]),
        "median_ms": number(history.ms), "median_tok_s": number(history.tok_s), "notes": history.notes,
    }  # fmt: skip


def number(values):
    """Median of the finite values, None without any."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else None


def words_of(row):
    shown = (("loss", ".4f"), ("best_val_loss", ".4f"), ("best_val_step", "d"), ("median_ms", ".4g"))
    texts = ["n/a" if row[name] is None else format(row[name], form) for name, form in shown]
    speed = "n/a" if row["median_tok_s"] is None else short(row["median_tok_s"])
    return (one_line(row["run"]), str(row["steps"]), *texts, speed)


def columns(rows):
    """Rows of texts as aligned lines, names to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

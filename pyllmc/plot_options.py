"""The options of `python -m pyllmc.plot`: the table that its parser, its help and its defaults come from."""

from .cli import Option
from .errors import InvalidArgument, nearest
from .progress_axis import AXES

PANELS = ("loss", "eval", "norm", "lr", "time", "tok_s", "hist")
AUTO = "auto"


def one_of(choices):
    """A converter that takes these words only; others get the nearest named."""

    def convert(text):
        if text not in choices:
            raise InvalidArgument(f"unknown name {text!r}, {nearest(text, choices)}")
        return text

    return convert


def panel_names(text):
    """"loss,hist" as ("loss", "hist")."""
    return tuple(map(one_of(PANELS), words(text)))


def axis_name(text):
    return one_of(AXES)(text)


def words(text):
    return tuple(word.strip() for word in text.split(","))


def window(text):
    """"auto", or a number of updates from 0 on."""
    if text == AUTO:
        return AUTO
    if not text.isascii() or not text.isdigit():
        raise InvalidArgument(f"expected {AUTO} or a number of updates from 0 on, got {text!r}")
    return int(text)


GROUPS = {
    "what": (
        Option("runs", "", "run folders (their log.jsonl, or else llm.c's main.log), such log files, or what llm.c's trainer "
               "printed, in a file", metavar="RUN"),
        Option("panels", "--panels", f"some of {','.join(PANELS)}", panel_names, metavar="NAMES",
               decided_by="all that the logs have data for"),
        Option("labels", "--labels", "names of the runs, with commas between", words, metavar="NAMES",
               decided_by="the folders'"),
    ),
    "how": (
        Option("x", "--x", "x axis: steps, tokens, or time (that of the steps alone)", axis_name, "steps",
               metavar="NAME"),
        Option("smooth", "--smooth", "mean of N neighbouring updates for loss and norm; 0: none", window, AUTO,
               metavar="N"),
        Option("log_x", "--log-x", "logarithmic x axis", switch=True),
        Option("log_y", "--log-y", "logarithmic axis for loss, norm, learning rate and step time", switch=True),
    ),
    "output": (
        Option("output", "-o --output", "the picture, .png or .svg", metavar="FILE",
               decided_by="plot.png in the run's folder, for several runs in the current one"),
        Option("json", "--json", "print the summary as JSON", switch=True),
    ),
}  # fmt: skip

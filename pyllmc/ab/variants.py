"""What a side of a comparison is: switches of this engine in words, or a trainer's binary."""

import shlex
from dataclasses import dataclass, field

from .. import options
from ..errors import InvalidArgument, nearest

REFERENCE = "reference:"
FLAGS = {"on": 1, "off": 0, "true": 1, "false": 0}
SHORT = {"lr": "learning_rate", "b": "batch", "t": "seq_len"}
# Of llmc_options and llmc_hyper, what isn't a side's to choose.
NOT_HERE = ("device", "rank", "world", "comm_id", "step", "train")
LAG, LIBRARY = "lag", "library"

# Each switch turned off (or to its other values) where it means something; others would compare equals.
SWITCHES = {
    "cuda": (
        "streams=1", "graph=off", "prefetch=off", "prefetch=all", "gelu_fusion=0", "gelu_fusion=1", "recompute=1",
        "attention=own", "tune=off", "deterministic=on", "lag=0",
    ),
    "cpu": ("threads=1", "recompute=1", "recompute=2", "head_chunks=4"),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """text: as given. options: fields of llmc_options. hyper: fields of llmc_hyper. lag: results are read so many
    updates late, None: as the trainer does. library: an engine file of another build. binary: path of an
    llm.c trainer; nothing else is given then."""

    text: str = ""
    options: dict = field(default_factory=dict)
    hyper: dict = field(default_factory=dict)
    lag: int | None = None
    library: str | None = None
    binary: str | None = None

    @property
    def label(self):
        return self.text or "all defaults"


def parse_variant(text):
    """The Variant that words such as "streams=1 graph=off" or "reference:./train_gpt2cu" describe; "" is all
    defaults. Raises InvalidArgument, with the nearest name for a misspelt one."""
    text = text.strip()
    if text.startswith(REFERENCE):
        path = text.removeprefix(REFERENCE)
        if not path:
            raise InvalidArgument(f"{text!r}: expected {REFERENCE}PATH, the llm.c trainer to run")
        return Variant(text, binary=path)
    found = {}
    for word in split(text):
        name, equals, value = word.partition("=")
        name = SHORT.get(name, name)
        if not equals or not value:
            raise InvalidArgument(f"{word!r} in {text!r}: expected NAME=VALUE, such as streams=1")
        if name not in known_names():
            raise InvalidArgument(f"no switch is called {name!r}: {nearest(name, known_names())}")
        if name in found:
            raise InvalidArgument(f"{name} is given twice in {text!r}")
        found[name] = value if name == LIBRARY else value_of(name, value)
    lag, library = found.pop(LAG, None), found.pop(LIBRARY, None)
    if lag is not None and (not isinstance(lag, int) or lag < 0):
        raise InvalidArgument(f"lag must be a whole number, 0 or more, got {lag!r}")
    hyper = {name: found.pop(name) for name in list(found) if name in options.fields("llmc_hyper")}
    return Variant(text, found, hyper, lag, library)


def split(text):
    """The words of a variant, which blanks or commas separate; quotes keep a blank in a path."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{text!r}: {error}") from None
    return [word for part in words for word in part.split(",") if word]


def known_names():
    """Every name that a variant may give."""
    fields = options.names("llmc_options") + options.names("llmc_hyper")
    return [name for name in fields if name not in NOT_HERE] + [LAG, LIBRARY]


def value_of(name, text):
    """A switch's value from its text: one of its own words, on or off, or a number."""
    if name in options.WORDS and text in options.WORDS[name]:
        return text
    if text in FLAGS and name not in options.WORDS:
        return FLAGS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    if name in options.WORDS:
        raise InvalidArgument(f"{name} {text!r}: {nearest(text, options.WORDS[name])}")
    raise InvalidArgument(f"{name} must be a number, on or off, got {text!r}")


def parse_sweep(text):
    """(name, values) of "batch=4,8,16"."""
    name, equals, listed = text.strip().partition("=")
    name = SHORT.get(name, name)
    if not equals or not all(listed.split(",")):
        raise InvalidArgument(f"--sweep {text!r}: expected NAME=VALUE,VALUE,..., such as batch=4,8,16")
    sweepable = [known for known in options.names("llmc_options") if known not in NOT_HERE]
    if name not in sweepable:
        raise InvalidArgument(f"--sweep: no switch is called {name!r}: {nearest(name, sweepable)}")
    values = [value_of(name, value) for value in listed.split(",")]
    if len(set(values)) < len(values):
        raise InvalidArgument(f"--sweep {text!r} gives a value twice")
    return name, values

"""The options of `python -m pyllmc.generate`: the table that its parser, its help and its defaults come from."""

import math

from .cli import Option
from .errors import InvalidArgument

ENGINE = "the engine's"
MAX_COUNT, MAX_SEED = 2**31 - 1, 2**64 - 1


def whole(low, high=MAX_COUNT):
    """A converter to whole numbers from `low` to `high`."""

    def convert(text):
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and low <= int(text) <= high):
            raise InvalidArgument(f"expected a whole number from {low} to {high}, got {text!r:.40}")
        return int(text)

    return convert


def real(accepts, expected):
    """A converter to finite numbers that `accepts` takes; `expected` says which these are."""

    def convert(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accepts(value)):
            raise InvalidArgument(f"expected {expected}, got {text!r:.40}")
        return value

    return convert


def some_text(text):
    if not text:
        raise InvalidArgument("expected at least one character")
    return text


GROUPS = {
    "what": (
        Option("words", "", "checkpoint file, run folder or Hugging Face folder; then, in quotes, the prompt. Without "
               "one it is read from stdin where that is no terminal; an empty one is the end-of-text token",
               metavar="MODEL"),
        Option("prompt_file", "-p --prompt-file", "file with the prompt, - for stdin; a line break at its end is "
               "left out", metavar="FILE"),
        Option("tokenizer", "--tokenizer", "auto, gpt2, bytes, ids (numbers for tokens) or a tokenizer file", str, "auto",
               metavar="NAME"),
    ),
    "drawing": (
        Option("max_new", "-n --max-new", "tokens to draw at most; any length works, past the context it slides",
               whole(0), 256, metavar="N"),
        Option("temperature", "--temperature", "0 takes the likeliest token, less than 1 sharpens", real(
               lambda value: value >= 0, "0 or more"), 1.0, metavar="X"),
        Option("top_k", "--top-k", "draw among the K likeliest tokens; 0: all", whole(0), 0, metavar="K"),
        Option("top_p", "--top-p", "draw among the likeliest tokens that reach this probability; 1: all", real(
               lambda value: 0 < value <= 1, "a number above 0 and up to 1"), 1.0, metavar="P"),
        Option("seed", "--seed", "the same seed draws the same text", whole(0, MAX_SEED), 0, metavar="N"),
        Option("samples", "--samples", "texts to draw, with the seeds from --seed on", whole(1), 1, metavar="N"),
        Option("stop", "--stop", "end before this text; may be repeated", some_text, many=True),
        Option("stop_id", "--stop-id", "end before this token; may be repeated", whole(0), many=True, metavar="ID"),
        Option("past_end", "--past-end", "go on after the end-of-text token, which is then shown", switch=True),
    ),
    "output": (
        Option("echo", "--echo", "show the prompt before each text", switch=True),
        Option("json", "--json", "a last line with ids, texts and times as JSON", switch=True),
        Option("quiet", "-q --quiet", "no remarks on model and speed on stderr", switch=True),
    ),
    "engine": (
        Option("device", "--device", "auto, cpu, cuda or cuda:N", str, "auto", metavar="NAME"),
        Option("threads", "--threads", "CPU threads; 0: all", whole(0), decided_by=ENGINE, metavar="N"),
        Option("precision", "--precision", "fp32 or bf16", metavar="NAME", decided_by=ENGINE),
    ),
}  # fmt: skip

# Rows whose name is a keyword of GPT2.
ENGINE_FIELDS = ("threads", "precision")

"""The options of `python -m pyllmc.data`: one table a command, from which parser, help and defaults come."""

import dataclasses

from ..cli import Option
from ..errors import InvalidArgument
from ..shards import MAX_TOKENS
from .catalogue import SETS

UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}


def amount(text):
    """A number of tokens: 5000, 1_000_000 or 100M."""
    digits, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    try:
        number = int(digits) * unit
    except ValueError:
        number = 0
    if number < 1:
        raise InvalidArgument(f"expected a number of tokens such as 5000 or 100M, got {text!r}")
    return number


def shard_size(text):
    number = amount(text)
    if number > MAX_TOKENS:
        raise InvalidArgument(f"a shard counts at most {MAX_TOKENS} tokens, got {text}")
    return number


def fraction(text):
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise InvalidArgument(f"expected a fraction from 0 to less than 1, got {text!r}")
    return number


def separator(text):
    r"""The text with \n and \t as on a command line: a line break, a tab."""
    mark = text.replace("\\n", "\n").replace("\\t", "\t")
    if not mark:
        raise InvalidArgument("expected a text that separates documents, got nothing")
    return mark


def processes(text):
    if not text.isascii() or not text.isdigit():
        raise InvalidArgument(f"expected a number of processes from 0 on, got {text!r}")
    return int(text)


TOKENIZER = Option("tokenizer", "--tokenizer", "gpt2, bytes, or a tokenizer file", str, "gpt2", metavar="NAME")
PREPARE = {
    "what": (
        Option("inputs", "", "text, JSONL or Parquet files, folders of them, or quoted patterns", metavar="IN"),
        Option("separator", "--separator", r"what stands between documents of a text file (\n is a line break); white "
               "space stays with the document before it, a mark goes", separator, metavar="TEXT",
               decided_by="a text file is one document"),
        Option("text_field", "--text-field", "field of JSONL or column of Parquet that holds the text", str, "text",
               metavar="NAME"),
        Option("skip_bad", "--skip-bad", "leave out and count documents that can't be read, instead of stopping",
               switch=True),
    ),
    "tokens": (
        TOKENIZER,
        Option("shard_size", "--shard-size", "tokens of a shard at most", shard_size, 100_000_000, "100M",
               metavar="TOKENS"),
        Option("val", "--val", "fraction held out for validation, in whole documents where there are enough; 0: none",
               fraction, 0.1, metavar="FRACTION"),
        Option("val_tokens", "--val-tokens", "hold out the first N tokens instead, as llm.c does", amount, metavar="N"),
    ),
    "output": (
        Option("output", "-o --output", "folder for the shards", str, "data", metavar="FOLDER"),
        Option("name", "--name", "beginning of the shards' names", metavar="NAME", decided_by="the input's"),
        Option("processes", "--processes", "that encode at the same time; 0: one a CPU core", processes, 0, metavar="N"),
        Option("force", "--force", "start anew in place of shards of that name", switch=True),
    ),
}  # fmt: skip
HELLASWAG = {
    "what": (
        Option("inputs", "", "hellaswag_val.jsonl, or JSONL like it: ctx, endings, label", metavar="FILE"),
        TOKENIZER,
        Option("skip_bad", "--skip-bad", "leave out and count lines that can't be read, instead of stopping", switch=True),
    ),
    "output": (
        Option("output", "-o --output", "the evaluation file", metavar="FILE", decided_by="the input with the suffix .bin"),
    ),
}  # fmt: skip
INSPECT = {
    "what": (
        Option("inputs", "", "shards, evaluations, tokenizers, checkpoints, optimizer states", metavar="FILE"),
        Option("tokenizer", "--tokenizer", "gpt2, bytes, or a tokenizer file", metavar="NAME",
               decided_by="by the largest id"),
        Option("tokens", "--tokens", "tokens to show from the beginning", amount, 64, metavar="N"),
    ),
}  # fmt: skip
LIST = {}


def groups_of(command):
    """The table of a command; a set has that of `prepare` with its own defaults."""
    if command not in SETS or command == "hellaswag":
        return {"prepare": PREPARE, "hellaswag": HELLASWAG, "inspect": INSPECT, "list": LIST}[command]
    own = {"name": command, **SETS[command].options}
    return {
        title: tuple(
            dataclasses.replace(row, default=own[row.name], decided_by=shown(own[row.name])) if row.name in own else row
            for row in rows
        )
        for title, rows in PREPARE.items()
    }


def shown(value):
    return value.replace("\n", "\\n") if isinstance(value, str) else ""

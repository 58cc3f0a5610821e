"""The options of `python -m pyllmc.evaluate`: the table that its parser, its help and its defaults come from."""

from .cli import Option
from .generate_options import GROUPS as GENERATE
from .generate_options import whole

GROUPS = {
    "what": (
        Option("words", "", "checkpoint file, run folder or Hugging Face folder", metavar="MODEL"),
        Option("data", "-j --data", "token shards to take the loss on, a glob pattern", metavar="PATTERN"),
        Option("hellaswag", "--hellaswag", "evaluation file to take the accuracy on, as `python -m pyllmc.data hellaswag` "
               "makes it", metavar="FILE"),
        Option("tokenizer", "--tokenizer", "for bits per byte: auto, gpt2, bytes, none or a tokenizer file", str, "auto",
               metavar="NAME"),
    ),
    "rows": (
        Option("batch", "-b --batch", "rows B at a time", whole(1), decided_by="what fits, up to 16", metavar="N"),
        Option("seq_len", "-t --seq-len", "tokens T of a row of the shards", whole(1),
               decided_by="the model's context, 1024 at most", metavar="N"),
        Option("batches", "-m --batches", "batches of the shards at most; -1: all", whole(-1), -1, metavar="N"),
    ),
    "output": (
        Option("json", "--json", "print one JSON object instead", switch=True),
    ),
    "engine": GENERATE["engine"],
}  # fmt: skip

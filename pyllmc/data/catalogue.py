"""Data sets that people train GPT-2 on: what they are, where to get a copy, how it is prepared.

Nothing is downloaded here. A half-loaded file or an error page in the place of data is then somebody's visible
mistake and not this program's silent one.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DataSet:
    """what: in a line. where: address of the files. files: what to name on the command line after fetching them.
    options: defaults of `prepare` for this set, by option name."""

    what: str
    where: str
    files: str
    options: dict = field(default_factory=dict)


SETS = {
    "tinyshakespeare": DataSet(
        "Shakespeare's plays in one file of 1 MB; 32,768 tokens held out, as in llm.c",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "input.txt", {"separator": "\n\n", "val_tokens": 32768},
    ),
    "tinystories": DataSet(
        "short stories for small models, 2.7 million of them in 2 GB",
        "https://huggingface.co/datasets/roneneldan/TinyStories (TinyStoriesV2-GPT4-train.txt)",
        "TinyStoriesV2-GPT4-train.txt", {"separator": "<|endoftext|>", "val": 0.01},
    ),
    "fineweb": DataSet(
        "web pages, the sample of 10 billion tokens; 100 M tokens held out, as in llm.c; needs pyarrow",
        "https://huggingface.co/datasets/HuggingFaceFW/fineweb (the folder sample/10BT)",
        "sample/10BT", {"val_tokens": 100_000_000},
    ),
    "hellaswag": DataSet(
        "four endings each, one of them right: an evaluation, not training data",
        "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl",
        "hellaswag_val.jsonl",
    ),
}  # fmt: skip


def where_to_get(name):
    """One sentence for somebody who named a set and has no copy."""
    known = SETS[name]
    return f"nothing is downloaded: get {known.files} from {known.where} and run: {command_of(name)}"


def command_of(name):
    return f"python -m pyllmc.data {name} {SETS[name].files}"


def listing():
    """All sets as text."""
    parts = []
    for name, known in SETS.items():
        parts.append(f"{name}\n  {known.what}\n  get:  {known.where}\n  run:  {command_of(name)}")
    return "\n".join(parts)

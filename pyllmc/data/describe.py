"""What is in a file: python -m pyllmc.data inspect"""

import numpy as np

from ..checkpoint import peek_checkpoint
from ..config import GPT2_VOCAB
from ..console import one_line, short
from ..errors import FormatError, LlmcError
from ..headers import (
    CHECKPOINT,
    DEBUG_STATE,
    KINDS,
    MULTIPLE_CHOICE,
    OPTIMIZER_STATE,
    SHARD,
    TOKENIZER,
    kind_of,
    read_header,
)  # fmt: skip
from ..multiple_choice import read_multiple_choice
from ..optimizer_state import peek_state
from ..shards import open_shard
from ..tokenizer import load_tokenizer
from ..tokenizer_file import read_tokenizer_file

WINDOW = 1 << 22  # tokens looked at at once
ID_COUNT = 1 << 16
TEXT_SHOWN = 2000  # characters


def describe(path, tokenizer=None, tokens=64, progress=lambda size: None):
    """(label, text) rows about one of llm.c's files: header, numbers, beginning.

    tokenizer: name or file to show text with; None: by the largest id. tokens: how many to show. progress: called
    with the bytes of what was read. Raises FormatError for a file that is none of these, or damaged.
    """
    kind = known_kind(path)
    with open(path, "rb") as file:
        header = read_header(file, path, kind)
    used = " ".join(str(value) for value in np.trim_zeros(header, "b"))
    rows = [("file", f"{one_line(path)}: {kind.name}"), ("header", one_line(used))]
    return rows + READERS[kind](path, tokenizer, tokens, progress)


def known_kind(path):
    """The Kind of the file. Raises FormatError where it is none of llm.c's."""
    kind = kind_of(path)
    if kind is None:
        raise FormatError(f"{path}: begins like none of llm.c's files: {', '.join(kind.name for kind in KINDS)}")
    return kind


def shard_rows(path, tokenizer, tokens, progress):
    counts = np.zeros(ID_COUNT, np.int64)
    with open_shard(path) as shard:
        for start in range(0, shard.tokens, WINDOW):
            part = shard.read(start, min(WINDOW, shard.tokens - start))
            counts += np.bincount(part, minlength=ID_COUNT)
            progress(2 * part.size)
        first = shard.read(0, min(tokens, shard.tokens))
        total = shard.tokens
    rows = [("tokens", f"{total:,}")]
    if not total:
        return rows
    used = np.flatnonzero(counts)
    rows.append(("ids", f"{used.size} different, the largest {used[-1]}"))
    found, why = tokenizer_for(tokenizer, int(used[-1]))
    if found is not None:
        lengths = found.byte_lengths()
        starts = int(counts[found.eot])
        text = int(counts[: found.n_vocab] @ lengths - starts * lengths[found.eot])
        per_token = text / max(1, total - starts)
        rows += [
            ("documents", f"{starts:,} begin here, by the end-of-text id {found.eot}"),
            ("text", f"{text:,} bytes, {per_token:.2f} a token ({one_line(found.name)})"),
        ]
    return rows + beginning(first, found, why)


def choice_rows(path, tokenizer, tokens, progress):
    examples = read_multiple_choice(path)
    rows = [("examples", f"{len(examples):,}")]
    if not examples:
        return rows
    labels = np.bincount([example.label for example in examples])
    rows.append(("labels", ", ".join(f"{number} x {label}" for label, number in enumerate(labels))))
    first = examples[0]
    largest = max(int(run.max()) for example in examples for run in (example.context, *example.completions))
    found, why = tokenizer_for(tokenizer, largest)
    if found is None:
        rows.append(("no text", why))
    rows.append(("context", shown(first.context[:tokens], found)))
    for number, run in enumerate(first.completions):
        mark = " (right)" if number == first.label else ""
        rows.append((f"ending {number}", f"{shown(run[:tokens], found)}{mark}"))
    return rows


def tokenizer_rows(path, tokenizer, tokens, progress):
    table, eot = read_tokenizer_file(path)
    longest = max(table, key=len)
    return [
        ("ids", f"{len(table):,}, end-of-text is {eot}"),
        ("bytes", f"{sum(map(len, table)):,} in all tokens, the longest has {len(longest)}"),
        ("first text", one_line(" ".join(repr(text)[1:] for text in table[:tokens]))),
    ]


def checkpoint_rows(path, tokenizer, tokens, progress):
    config, dtype = peek_checkpoint(path)
    return [
        ("model", f"{config.layers} layers, {config.heads} heads, {config.channels} channels, "
                  f"vocabulary {config.vocab}, context {config.context}"),
        ("weights", f"{config.num_params:,} ({short(config.num_params)}) as {dtype}"),
    ]  # fmt: skip


def state_rows(path, tokenizer, tokens, progress):
    head = peek_state(path)
    return [("state", ", ".join(f"{name} {value}" for name, value in vars(head).items() if np.isscalar(value)))]


def debug_rows(path, tokenizer, tokens, progress):
    with open(path, "rb") as file:
        header = read_header(file, path, DEBUG_STATE)
    return [("batch", f"B {header[2]}, T {header[3]}")]


READERS = {
    SHARD: shard_rows, MULTIPLE_CHOICE: choice_rows, TOKENIZER: tokenizer_rows, CHECKPOINT: checkpoint_rows,
    OPTIMIZER_STATE: state_rows, DEBUG_STATE: debug_rows,
}  # fmt: skip


def tokenizer_for(name, largest):
    """(Tokenizer or None, why there is none) for tokens whose largest id is given."""
    if name is None:
        if largest >= GPT2_VOCAB:
            return None, f"no known vocabulary has an id {largest} (--tokenizer names a file)"
        name = "bytes" if largest <= 256 else "gpt2"
        try:
            return load_tokenizer(name), ""
        except LlmcError as error:
            return None, str(error)
    found = load_tokenizer(name)
    if largest >= found.n_vocab:
        return None, f"{found.name} has {found.n_vocab} ids, the file holds {largest}"
    return found, ""


def beginning(ids, tokenizer, why):
    rows = [("first ids", " ".join(map(str, ids)))]
    return [*rows, ("first text", shown(ids, tokenizer))] if tokenizer is not None else [*rows, ("no text", why)]


def shown(ids, tokenizer):
    """The text of the ids, quoted and on one line; the ids without a tokenizer."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    text = tokenizer.decode(ids)
    return one_line(repr(text[:TEXT_SHOWN])) + ("…" if len(text) > TEXT_SHOWN else "")

"""HellaSwag's public JSONL to the evaluation file that trainers read.

Each line has a context `ctx`, four `endings` and the index `label` of the right one. The model sees ctx and then,
after a space, one of the endings.
"""

import numpy as np

from ..errors import FormatError
from ..multiple_choice import Example, write_multiple_choice
from ..pieces import check_fits_shards
from .encode import Fault, json_object

ENDINGS = 4


def convert(path, output, tokenizer, skip_bad=False, progress=lambda size: None):
    """Write the evaluation file `output` from the JSONL `path`; returns (examples, lines left out).

    progress: called with the bytes of each line. Raises FormatError naming the line and what is wrong with it,
    unless skip_bad.
    """
    check_fits_shards(tokenizer)
    examples, bad = [], 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            progress(len(line))
            raw = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not raw.strip():
                continue
            example = example_of(json_object(raw), tokenizer, len(examples))
            if isinstance(example, Example):
                examples.append(example)
            elif skip_bad:
                bad += 1
            else:
                raise FormatError(f"{path}: line {number}: {example.reason} (--skip-bad leaves out such lines)")
    if not examples:
        raise FormatError(f"{path}: no example in there")
    write_multiple_choice(output, examples)
    return len(examples), bad


def example_of(record, tokenizer, index):
    """The Example of a line, or the Fault that there is with it."""
    if isinstance(record, Fault):
        return record
    context, endings, label = (record.get(key) for key in ("ctx", "endings", "label"))
    missing = [key for key in ("ctx", "endings", "label") if key not in record]
    if missing:
        hint = "; HellaSwag's test file has no labels, hellaswag_val.jsonl has" if missing == ["label"] else ""
        return Fault(f"no field {missing[0]!r}{hint}")
    if not isinstance(context, str) or not context:
        return Fault("ctx: expected text")
    if not isinstance(endings, list) or len(endings) != ENDINGS or not all(isinstance(text, str) for text in endings):
        return Fault(f"endings: expected {ENDINGS} texts")
    if isinstance(label, str) and label.isascii() and label.isdigit():  # as some copies of the set write it
        label = int(label)
    if type(label) is not int or not 0 <= label < ENDINGS:
        return Fault(f"label: expected a number from 0 to {ENDINGS - 1}, got {label!r}")
    try:
        runs = [tokenizer.encode_bytes(text.encode()) for text in (context, *(f" {ending}" for ending in endings))]
    except UnicodeEncodeError:
        return Fault("holds half of a character (a lone surrogate)")
    return Example(index, label, runs[0].astype(np.uint16), tuple(run.astype(np.uint16) for run in runs[1:]))

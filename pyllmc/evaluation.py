"""Accuracy on multiple-choice examples such as HellaSwag's: the completion that the model finds likeliest is its answer.

Each completion is a row of the batch: context, then completion. Its score is the mean loss over the completion's own
tokens; the lowest is the answer, of equal ones the first.
"""

import math
import os
from typing import NamedTuple

import numpy as np

from .errors import FormatError, InvalidArgument
from .multiple_choice import read_multiple_choice


class Accuracy(NamedTuple):
    """accuracy: correct / count, from 0 to 1, NaN where count is 0. correct, count: examples."""

    accuracy: float
    correct: int
    count: int


class Question(NamedTuple):
    """rows: uint16 arrays, context and completion of each choice. scored: tokens of each completion. label: the index
    of the right one."""

    rows: tuple
    scored: tuple
    label: int


class Questions(list):
    """Question objects that fit rows of seq_len tokens. notes: sentences on what had to be cut or left out."""

    def __init__(self, source, seq_len, vocab):
        """source: an evaluation file, or Examples.

        A context too long for a row loses its beginning, the same for all completions; an example whose completion
        alone is too long is left out. Raises FormatError or InvalidArgument for ids
        beyond `vocab`, or where no example is left.
        """
        where = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the examples"
        examples = read_multiple_choice(source, vocab) if where != "the examples" else source
        cut, left_out = 0, 0
        for number, example in enumerate(examples):
            room = seq_len + 1 - max(map(len, example.completions))  # the last token of a row is a target only
            if room < 1:
                left_out += 1
                continue
            cut += room < len(example.context)
            context = np.asarray(example.context)[-room:]
            rows = tuple(np.concatenate([context, completion]) for completion in example.completions)
            check_ids(rows, vocab, f"{where}: example {number}")
            self.append(Question(rows, tuple(map(len, example.completions)), example.label))
        self.notes = []
        if not self:
            reason = f"all have completions of more than {seq_len} tokens, the length of a row" if left_out else "none there"
            raise FormatError(f"{where}: no example that can be evaluated: {reason}")
        if cut:
            self.notes.append(f"{where}: {cut} of {len(self) + left_out} contexts lose their beginning in rows of {seq_len}")
        if left_out:
            self.notes.append(f"{where}: {left_out} of {len(self) + left_out} examples are longer than rows of {seq_len} "
                              "and left out")  # fmt: skip


def check_ids(rows, vocab, where):
    largest = max(int(row.max()) for row in rows)
    if largest >= vocab:
        raise InvalidArgument(f"{where}: token id {largest}, vocabulary is {vocab}")


def accuracy(model, source, progress=None, *, rank=0, world=1):
    """The Accuracy of `model` on an evaluation file (llm.c's multiple-choice format), Examples, or Questions.

    Any batch and length will do; see Questions for what is too long. progress: called with the number of examples
    each time that some are answered. With several ranks each takes its share of the examples: the caller adds
    up `correct` and `count`. Raises FormatError, InvalidArgument, OSError.
    """
    if not 0 <= rank < world:
        raise InvalidArgument(f"rank must be from 0 to {world - 1} (world - 1), got {rank}")
    questions = source if isinstance(source, Questions) else Questions(source, model.seq_len, model.config.vocab)
    longest = max(len(row) - 1 for question in questions for row in question.rows)
    if longest > model.seq_len:
        raise InvalidArgument(f"the questions have rows of {longest} tokens, the model's have {model.seq_len}")
    share = questions[rank::world]
    correct = sum(answered == question.label for question, answered in zip(share, answers(model, share, progress), strict=True))
    return Accuracy(correct / len(share) if share else math.nan, correct, len(share))


def answers(model, questions, progress=None):
    """Yield the model's answer to each question, an index. Rows follow each other through the batches without gaps."""
    scores = scores_of(model, questions)
    for question in questions:
        losses = [next(scores) for _ in question.rows]
        # A model that has diverged answers nothing right: NaN must not be the least.
        yield -1 if any(map(math.isnan, losses)) else int(np.argmin(losses))
        if progress is not None:
            progress(1)


def scores_of(model, questions):
    """Yield the mean loss of each completion, in order."""
    todo = [(row, n) for question in questions for row, n in zip(question.rows, question.scored, strict=True)]
    for first in range(0, len(todo), model.batch):
        group = todo[first : first + model.batch]
        losses = losses_of(model, [row for row, _ in group])
        for (row, n), found in zip(group, losses, strict=False):
            yield math.fsum(found[len(row) - 1 - n : len(row) - 1]) / n


def losses_of(model, rows):
    """Losses (B,T) of up to B rows of up to T+1 tokens; what they don't fill is padding, which a causal model
    can't see from where it matters."""
    with model.acquire_slot() as slot:
        slot.inputs[:] = slot.targets[:] = 0
        for at, row in enumerate(rows):
            slot.inputs[at, : len(row) - 1] = row[:-1]
            slot.targets[at, : len(row) - 1] = row[1:]
        slot.submit()
        return model.eval_slot(slot, per_position=True)

"""Loss on token shards, per token and per byte of the text that the tokens spell."""

import math
from typing import NamedTuple

import numpy as np


class Validation(NamedTuple):
    """loss: mean cross-entropy in nats over `tokens` targets. bits_per_byte: of the targets that are text, which are
    `bytes` long; None where the vocabulary isn't known, NaN for a text of 0 bytes."""

    loss: float
    tokens: int
    bits_per_byte: float | None
    bytes: int | None


def text_bytes(tokenizer, vocab):
    """Bytes of text of each of `vocab` ids, int64 (vocab,): 0 for the end-of-text, which separates texts and is in none,
    and for ids beyond the tokenizer's, which padded vocabularies have."""
    lengths = np.zeros(vocab, np.int64)
    lengths[: tokenizer.n_vocab] = tokenizer.byte_lengths()[:vocab]
    if tokenizer.eot < vocab:
        lengths[tokenizer.eot] = 0
    return lengths


def validate(model, loader, batches=-1, lengths=None, progress=None):
    """The Validation of `model` on the first `batches` of a loader, -1: of all that one epoch serves.

    lengths: as text_bytes gives them; what has none counts neither as bytes nor as bits. progress: called with 1 after
    each batch.
    """
    count = loader.num_batches if batches < 0 else min(batches, loader.num_batches)
    loader.reset()
    nats, text_nats, size = [], [], 0
    for _ in range(count):
        with model.acquire_slot() as slot:
            loader.next_into(slot.inputs, slot.targets)
            spelled = None if lengths is None else lengths[slot.targets]
            slot.submit()
            losses = model.eval_slot(slot, per_position=True).astype(np.float64)
        nats.append(losses.sum())
        if spelled is not None:
            text_nats.append(losses[spelled > 0].sum())
            size += int(spelled.sum())
        if progress is not None:
            progress(1)
    tokens = count * model.batch * model.seq_len
    bits = None if lengths is None else math.fsum(text_nats) / math.log(2) / size if size else math.nan
    return Validation(math.fsum(nats) / tokens, tokens, bits, None if lengths is None else size)

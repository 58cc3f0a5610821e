"""The run that happens on a GPU when nothing is asked for: what fits the device and lasts about a minute."""

from . import flops, memory
from .errors import InvalidArgument

# Many small updates on short rows: what a position of a row means is learnt from rows, not from tokens, and the
# default text has only so many. At 16384 tokens and T = 1024 the loss stays where pairs of letters leave it.
TOKENS_PER_UPDATE = 4096
SECONDS = 45  # of training; start, validation, samples and saving take the rest of the minute
EPOCHS = 16  # the default text is half a megabyte: without end, a model of 85M parameters learns it by heart
SHARE_OF_PEAK = 0.35  # that a model of this size is expected to reach
UNKNOWN_TFLOPS = 60  # taken for a GPU without a known peak
FILL = 0.9  # of the free memory: others may want some, too


def choose(config, seq_len, tokens, shortest_shard, plan_of, peak_tflops, batch=None, total_tokens=None):
    """{name: value} of batch, total_tokens, steps, warmup, val_every and sample_every, in the words of train_options.

    tokens: of the training data. shortest_shard: tokens of the shortest shard, validation included, which
    must hold a batch. plan_of: an llmc_memory from a number of rows. peak_tflops: None if unknown. batch,
    total_tokens: where the user has decided them.
    """
    for name, value in (("batch", batch), ("seq_len", seq_len)):
        if value is not None and value < 1:
            raise InvalidArgument(f"{name} must be at least 1, got {value}")
    if batch is None:
        rows = max(1, min((total_tokens or TOKENS_PER_UPDATE) // seq_len, (shortest_shard - 1) // seq_len))
        # a power of two divides the update evenly; none fits: then the engine says by how much
        fitting = memory.largest_batch(plan_of, rows, FILL) or 1
        batch = 1 << (fitting.bit_length() - 1)
    if total_tokens is None:
        total_tokens = batch * seq_len * max(1, TOKENS_PER_UPDATE // (batch * seq_len))
    speed = SHARE_OF_PEAK * (peak_tflops or UNKNOWN_TFLOPS) * 1e12 / flops.flops_per_token(config, seq_len)
    steps = max(20, int(min(SECONDS * speed, EPOCHS * tokens) / max(total_tokens, 1)))
    return {
        "batch": batch, "total_tokens": total_tokens, "steps": steps, "warmup": max(1, steps // 20),
        "val_every": max(1, steps // 15), "sample_every": max(1, steps // 3),
    }  # fmt: skip

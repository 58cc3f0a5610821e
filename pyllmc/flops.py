"""Arithmetic of a training step, for utilisation."""


def flops_per_token(config, seq_len):
    """Floating-point operations to train on one token: forward, and twice that backward.

    6 for each weight that multiplies an activation (the output head counts, the two look-up tables don't),
    and 6 L C T for causal attention: scores and mixing are 2 C multiply-adds for each earlier position, of
    which there are T/2 on average. Recomputation is not counted, so utilisation is of useful work.
    """
    shapes = config.shapes()
    L, C = config.layers, config.channels
    weights = config.padded_vocab * C
    for name in ("qkvw", "attprojw", "fcw", "fcprojw"):
        _, rows, columns = shapes[name]
        weights += L * rows * columns
    return 6 * weights + 6 * L * C * seq_len


def utilisation(config, seq_len, tokens_per_second, peak_tflops):
    """Model FLOPs utilisation from 0 to 1 of a peak in TFLOP/s, or None when the peak is unknown."""
    if not peak_tflops:
        return None
    return flops_per_token(config, seq_len) * tokens_per_second / (peak_tflops * 1e12)

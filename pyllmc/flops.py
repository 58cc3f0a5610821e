"""Arithmetic of a training step, for utilisation (MFU)."""

import math


def flops_per_token(config, seq_len):
    """Floating-point operations to train on one token: forward, and twice that backward.

    6 N + 6 L C T. N: the weights that multiply an activation (the output head counts with its padding, the
    two look-up tables, biases and norms don't), one multiply and one add each, three times. The rest is
    causal attention: scores and mixing are 2 C multiply-adds for each earlier position, of which there are
    T/2 on average. Recomputation is not counted, so utilisation is of useful work.
    """
    shapes = config.shapes()
    L, C = config.layers, config.channels
    weights = config.padded_vocab * C
    for name in ("qkvw", "attprojw", "fcw", "fcprojw"):
        _, rows, columns = shapes[name]
        weights += L * rows * columns
    return 6 * weights + 6 * L * C * seq_len


def utilisation(config, seq_len, tokens_per_second, peak_tflops):
    """Share of a peak in TFLOP/s that useful work took; None when the peak or the speed is unknown.

    tokens_per_second: of one device. Above 1 the peak is not that of the device.
    """
    return utilisation_meter(config, seq_len, peak_tflops)(tokens_per_second)


def utilisation_meter(config, seq_len, peak_tflops):
    """utilisation as a function of the speed alone, for use at every step."""
    share = flops_per_token(config, seq_len) / (peak_tflops * 1e12) if peak_tflops else None

    def measure(tokens_per_second):
        if share is None or not math.isfinite(tokens_per_second):
            return None
        return share * tokens_per_second

    return measure

"""bfloat16 in NumPy, which has no such type: its bits travel as uint16.

A bf16 is the upper half of a float32, so widening is exact and narrowing is a rounding of 16 bits.
"""

import numpy as np


def widen(bits):
    """float32 values of bf16 `bits` (uint16 array of any shape); exact."""
    out = np.empty(np.shape(bits), np.uint32)
    np.left_shift(bits, 16, out=out, dtype=np.uint32)
    return out.view(np.float32)


def narrow(values):
    """bf16 bits (uint16) of float32 `values`, rounded to nearest, ties to even.

    Adding 0x7fff plus the lowest kept bit carries into the upper half exactly when the dropped half is
    above one half, or at one half with an odd neighbour below. Too large values become infinity by that
    same carry. A NaN would be carried away or cut to infinity, so it keeps its upper half made quiet.
    """
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits  # wraps only for NaN, which is replaced below
    rounded >>= 16
    out = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        out[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x40
    return out

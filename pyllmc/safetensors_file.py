"""Safetensors files, a tensor at a time and bf16 included, which NumPy's half of the package doesn't know.

The format: uint64 length of a JSON header, the header ({name: dtype, shape, data_offsets}), then the bytes.
"""

import json
import math

import numpy as np

from . import bf16
from .errors import FormatError, InvalidArgument, Unavailable
from .lazy import Stored

NAME_OF = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
CODE_OF = {"fp32": "F32", "bf16": "BF16"}
LAYOUT = {"fp32": "<f4", "bf16": "<u2", "fp16": "<f2"}
ALIGNMENT = 8  # of the first tensor, by spaces after the header


def read_safetensors(path):
    """{name: Stored} of a file. Raises FormatError for a damaged one, OSError for an unreadable one."""
    try:
        import safetensors
    except ImportError as error:
        raise Unavailable(f"reading {path} needs the package safetensors: pip install safetensors") from error
    with open(path, "rb") as file:  # first, for the operating system's own words
        try:
            with safetensors.safe_open(path, framework="numpy"):  # checks header, offsets and size
                pass
        except safetensors.SafetensorError as error:
            raise FormatError(f"{path}: not a whole safetensors file: {error}") from None
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: stored(path, 8 + length, entry) for name, entry in header.items()}


def stored(path, start, entry):
    shape, dtype = tuple(entry["shape"]), NAME_OF.get(entry["dtype"], entry["dtype"])
    offset = start + entry["data_offsets"][0]

    def read():
        values = np.fromfile(path, LAYOUT[dtype], math.prod(shape), offset=offset).reshape(shape)
        return as_float32(values, dtype)

    return Stored(shape, dtype, read)


def as_float32(values, dtype):
    """float32 of an array in LAYOUT[dtype]; exact."""
    return bf16.widen(values) if dtype == "bf16" else values.astype(np.float32, copy=False)


def write_safetensors(file, table, arrays, dtype):
    """Write to the open binary `file`. table: {name: shape}; arrays: float32, in that order, drawn one at a time;
    dtype: "fp32" or "bf16" (rounded to nearest even)."""
    item = np.dtype(LAYOUT[dtype]).itemsize
    header, end = {"__metadata__": {"format": "pt"}}, 0  # transformers refuses a file without it
    for name, shape in table.items():
        begin, end = end, end + math.prod(shape) * item
        header[name] = {"dtype": CODE_OF[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for (name, shape), array in zip(table.items(), arrays, strict=True):
        if array.shape != tuple(shape):
            raise InvalidArgument(f"tensor {name} has shape {array.shape}, expected {tuple(shape)}")
        array = np.ascontiguousarray(array, np.float32)
        bits = bf16.narrow(array) if dtype == "bf16" else array
        file.write(bits.astype(LAYOUT[dtype], copy=False).data)

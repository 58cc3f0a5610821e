"""llm.c model checkpoints: version 3 holds float32, version 5 bf16, for all 16 tensors."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from . import bf16
from .atomic import atomic_write
from .config import GPT2Config
from .errors import FormatError, InvalidArgument, nearest
from .headers import CHECKPOINT, HEADER_BYTES, check_size, file_size, pack_header, read_exactly, read_header
from .lazy import Lazy

VERSION_OF = {"fp32": 3, "bf16": 5}
DTYPE_OF = {version: dtype for dtype, version in VERSION_OF.items()}
ITEM_BYTES = {"fp32": 4, "bf16": 2}
CHUNK = 1 << 20  # values converted at once, so that a conversion needs megabytes and not a second model


@dataclass
class Checkpoint:
    """config, dtype as stored ("fp32" or "bf16") and params: {name: float32 array}, wte with its Vp rows."""

    config: GPT2Config
    dtype: str
    params: dict


def peek_checkpoint(path):
    """(config, dtype) of a checkpoint from its header and size alone; no weight is read.

    Raises FormatError for a foreign, damaged, truncated or overlong file.
    """
    with open(path, "rb") as file:
        return _read_config(file, path)


def iter_checkpoint(path):
    """Yield (name, float32 array) for the 16 tensors in file order, holding one of them at a time."""
    with open(path, "rb") as file:
        config, dtype = _read_config(file, path)
        for name, shape in config.shapes().items():
            yield name, _read_tensor(file, path, shape, dtype)


def lazy_checkpoint(path):
    """(config, dtype, Mapping of name to float32 array that reads a tensor when asked for it). Raises FormatError."""
    config, dtype = peek_checkpoint(path)
    functions, offset = {}, HEADER_BYTES
    for name, shape in config.shapes().items():
        functions[name] = functools.partial(_read_at, path, offset, shape, dtype)
        offset += math.prod(shape) * ITEM_BYTES[dtype]
    return config, dtype, Lazy(functions)


def read_checkpoint(path):
    """The whole checkpoint; bf16 weights are widened, which is exact. Raises FormatError."""
    config, dtype = peek_checkpoint(path)
    return Checkpoint(config, dtype, dict(iter_checkpoint(path)))


def write_checkpoint(path, config, params, dtype="fp32"):
    """Write `params` ({name: array}; or any object with those items, fetched one at a time).

    wte may have V or Vp rows; missing padding rows are written as zeros. "bf16" rounds to nearest even.
    The file appears complete or not at all. Raises InvalidArgument for a missing or misshapen tensor.
    """
    if dtype not in VERSION_OF:
        raise InvalidArgument(f"checkpoint dtype {dtype!r}: {nearest(dtype, VERSION_OF)}")
    fields = dict(
        zip(range(2, 8), (config.context, config.vocab, config.layers, config.heads, config.channels,
                          config.padded_vocab), strict=True)
    )  # fmt: skip
    with atomic_write(path) as file:
        file.write(pack_header(CHECKPOINT, VERSION_OF[dtype], fields))
        for name, shape in config.shapes().items():
            _write_tensor(file, name, _fetch(params, name), shape, config, dtype)


def _read_config(file, path):
    header = read_header(file, path, CHECKPOINT)
    context, vocab, layers, heads, channels, padded = map(int, header[2:8])
    try:
        config = GPT2Config(layers, heads, channels, vocab, context)
    except InvalidArgument as error:
        raise FormatError(f"{path}: model checkpoint header: {error}") from None
    if padded != config.padded_vocab:
        raise FormatError(
            f"{path}: padded vocabulary (header[7]) is {padded}, expected {config.padded_vocab}: "
            f"{vocab} rounded up to a multiple of 128"
        )
    dtype = DTYPE_OF[int(header[1])]
    count = config.num_params
    check_size(
        path, CHECKPOINT, file_size(file), HEADER_BYTES + count * ITEM_BYTES[dtype],
        f"a header and {count} {dtype} parameters",
    )  # fmt: skip
    return config, dtype


def _read_at(path, offset, shape, dtype):
    with open(path, "rb") as file:
        file.seek(offset)
        return _read_tensor(file, path, shape, dtype)


def _read_tensor(file, path, shape, dtype):
    values = np.empty(math.prod(shape), "<f4")
    if dtype == "fp32":
        read_exactly(file, path, values)
    else:
        for start in range(0, values.size, CHUNK):
            part = values[start : start + CHUNK]
            part[:] = bf16.widen(read_exactly(file, path, np.empty(part.size, "<u2")))
    return values.reshape(shape)


def _fetch(params, name):
    try:
        return np.asarray(params[name])
    except KeyError:
        raise InvalidArgument(f"checkpoint needs the tensor {name}, which is missing") from None


def _write_tensor(file, name, values, shape, config, dtype):
    unpadded = (config.vocab, config.channels)
    missing_rows = config.padded_vocab - config.vocab if name == "wte" and values.shape == unpadded else 0
    if values.shape != shape and not (name == "wte" and values.shape == unpadded):
        raise InvalidArgument(f"tensor {name} has shape {values.shape}, expected {shape}")
    if values.dtype != np.float32:
        raise InvalidArgument(f"tensor {name} is {values.dtype}, expected float32")
    flat = np.ascontiguousarray(values).reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        file.write(
            part.astype("<f4", copy=False) if dtype == "fp32" else bf16.narrow(part).astype("<u2", copy=False)
        )
    file.write(bytes(missing_rows * config.channels * ITEM_BYTES[dtype]))

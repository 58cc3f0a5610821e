"""Tensors that are read when they are asked for, so that a conversion holds one of them and not a second model."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .config import GPT2Config


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: shape, dtype ("fp32", "bf16", "fp16", or the file's own word for another one), and
    read(), which gives it as a float32 array of that shape (exact for those three)."""

    shape: tuple
    dtype: str
    read: Callable


class Lazy(Mapping):
    """name -> what its function returns, afresh each time."""

    def __init__(self, functions):
        self._functions = dict(functions)

    def __getitem__(self, name):
        return self._functions[name]()

    def __iter__(self):
        return iter(self._functions)

    def __len__(self):
        return len(self._functions)


class Watched(Mapping):
    """`params`, with tick(values) called after each tensor that was read."""

    def __init__(self, params, tick):
        self._params, self._tick = params, tick

    def __getitem__(self, name):
        array = self._params[name]
        self._tick(math.prod(array.shape))
        return array

    def __iter__(self):
        return iter(self._params)

    def __len__(self):
        return len(self._params)


@dataclass(frozen=True)
class Row:
    """What became of a tensor: its name, shape and dtype in the source, and where it went."""

    name: str
    shape: tuple
    dtype: str
    where: str


@dataclass
class Source:
    """A model in a file or folder, its weights not yet read.

    kind: what it is, in words. dtype: "fp32" or "bf16", which holds every weight exactly. params: Mapping of the
    16 tensors, float32, wte with V or Vp rows. rows: a Row for each tensor that the source holds. notes: what its
    user should know.
    """

    kind: str
    config: GPT2Config
    dtype: str
    params: Mapping
    rows: list
    notes: list = field(default_factory=list)

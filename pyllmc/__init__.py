"""pyllmc: GPT-2 training on a C++/CUDA engine, driven from Python.

Importing it loads no engine and touches no device.
"""

from . import _startup  # noqa: F401  first of all: it meets Ctrl-C during the imports below
from .callbacks import Callbacks
from .config import GPT2Config
from .errors import (
    AbiMismatch,
    DeviceError,
    FormatError,
    InvalidArgument,
    LibraryNotFound,
    LlmcError,
    OutOfMemory,
    ResultTimeout,
    StateError,
    Unavailable,
)
from .gpt2 import GPT2
from .loader import TokenLoader
from .trainer import Trainer

__all__ = [
    "GPT2",
    "AbiMismatch",
    "Callbacks",
    "DeviceError",
    "FormatError",
    "GPT2Config",
    "InvalidArgument",
    "LibraryNotFound",
    "LlmcError",
    "OutOfMemory",
    "ResultTimeout",
    "StateError",
    "TokenLoader",
    "Trainer",
    "Unavailable",
]

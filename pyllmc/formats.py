"""llm.c's files, read and written. Each format has its own module; this is the one to import from."""

from .atomic import atomic_write
from .checkpoint import Checkpoint, iter_checkpoint, peek_checkpoint, read_checkpoint, write_checkpoint
from .debug_state import DebugState, read_debug_state
from .multiple_choice import Example, read_multiple_choice, write_multiple_choice
from .optimizer_state import (
    LoaderState,
    OptimizerState,
    StateHeader,
    peek_state,
    read_state,
    split_by_tensor,
    write_state,
)
from .shards import Shard, find_shards, open_shard, write_shard
from .tokenizer_file import read_tokenizer_file, write_tokenizer_file

__all__ = [
    "Checkpoint",
    "DebugState",
    "Example",
    "LoaderState",
    "OptimizerState",
    "Shard",
    "StateHeader",
    "atomic_write",
    "find_shards",
    "iter_checkpoint",
    "open_shard",
    "peek_checkpoint",
    "peek_state",
    "read_checkpoint",
    "read_debug_state",
    "read_multiple_choice",
    "read_state",
    "read_tokenizer_file",
    "split_by_tensor",
    "write_checkpoint",
    "write_multiple_choice",
    "write_shard",
    "write_state",
    "write_tokenizer_file",
]

"""Hugging Face folders of a GPT-2: config.json, safetensors in one file or several, tokenizer files."""

import contextlib
import math
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

from .atomic import UMASK, atomic_write, sync_folder
from .errors import FormatError, InvalidArgument, nearest
from .hf_config import CONFIG, as_json, config_files, read_config, read_json, special_ids
from .hf_tokenizer import copied_files, tokenizer_files
from .hub_names import hint
from .lazy import Source
from .safetensors_file import CODE_OF, LAYOUT, read_safetensors, write_safetensors
from .state_dict import LINEAR, arrange, entries, listed, plain_names
from .tokenizer import load_tokenizer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHTS_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
SHARD_BYTES = 5 * 10**9  # of one weights file; transformers cuts there too


def read_pretrained(folder):
    """The Source in a folder, its weights not yet read. Linear weights come transposed to (out, in).

    Raises FormatError for a model this engine can't hold, and for any tensor that is missing or too much;
    InvalidArgument where there is no such folder; OSError for an unreadable file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        found = "a file, which GPT2.from_checkpoint reads if it is llm.c's" if folder.is_file() else "no such folder"
        raise InvalidArgument(f"{folder}: {found}, expected one with {CONFIG} and {WEIGHTS} on this machine{hint(folder)}")
    config, tied = read_config(folder)
    params, rows, dtype = arrange(plain_names(read_weights(folder), folder), config, folder, conv1d=True, tied=tied)
    return Source("Hugging Face folder", config, dtype, params, rows)


def read_weights(folder):
    """{name: Stored} of all weights files in a folder."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return read_safetensors(folder / WEIGHTS)
    if not index.is_file():
        others = [name for name in ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack") if (folder / name).exists()]
        instead = f" ({', '.join(others)} can't be read: save the model as safetensors)" if others else ""
        raise FormatError(f"{folder}: neither {WEIGHTS} nor {INDEX} is there{instead}")
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(
        isinstance(place, str) and os.path.basename(place) == place for place in places.values()
    ):
        raise FormatError(f"{index}: weight_map must name a file of this folder for each tensor")
    tensors = {}
    for place in sorted(set(places.values())):
        if not (folder / place).is_file():
            raise FormatError(f"{index}: names {place}, which is not in the folder")
        held = read_safetensors(folder / place)
        wrong = sorted(set(held) ^ {name for name, where in places.items() if where == place})
        if wrong:
            raise FormatError(f"{folder / place}: holds other tensors than {INDEX} says: {listed(wrong)}")
        tensors.update(held)
    return tensors


def write_pretrained(folder, config, params, dtype="fp32", *, tokenizer=None, force=False, shard_bytes=SHARD_BYTES):
    """Write a folder that transformers' GPT2LMHeadModel.from_pretrained reads; returns the files' names.

    params: {name: float32 array} of the 16 tensors, fetched one at a time; padding rows of wte are left out.
    dtype: "fp32", or "bf16" (rounded to nearest even). tokenizer: whose files to write too: a Tokenizer, "gpt2",
    an llm.c tokenizer file, or a folder to copy them from. shard_bytes: largest weights file, unless one tensor
    is larger. The folder is new or empty, or `force` replaces the model in it and leaves other files alone.

    Nothing is seen there before all files are complete. A replaced model can be read until then; power lost between
    the renames leaves a folder without config.json, which nobody takes for a model. Raises InvalidArgument.
    """
    folder = Path(folder)
    if dtype not in CODE_OF:
        raise InvalidArgument(f"dtype {dtype!r}: {nearest(dtype, CODE_OF)}")
    check_target(folder, force)
    files = extra_files(config, dtype, tokenizer)
    with staging(folder) as stage:
        shards = shards_of(config, dtype, shard_bytes)
        arrays = their_arrays(config, params)
        for name, table in shards.items():
            with atomic_write(stage / name) as file:
                write_safetensors(file, table, (next(arrays) for _ in table), dtype)
        if len(shards) > 1:
            files[INDEX] = index_of(shards, config, dtype)
        for name, content in files.items():
            with atomic_write(stage / name) as file:
                file.write(content)
        put_in_place(stage, folder)
    return sorted([*shards, *files])


def check_target(folder, force):
    """Raises InvalidArgument unless a model may be written to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"{folder}: is a file, expected a folder to write")
    if not folder.absolute().parent.is_dir():
        raise InvalidArgument(f"{folder}: the folder {folder.absolute().parent} does not exist")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InvalidArgument(f"{folder}: is not empty, and replacing the model in it was not asked for (force)")


def extra_files(config, dtype, tokenizer):
    if tokenizer is None:
        return config_files(config, dtype)
    if isinstance(tokenizer, (str, os.PathLike)) and os.path.isdir(tokenizer):
        if not copied_files(tokenizer):
            raise InvalidArgument(f"{os.fspath(tokenizer)}: a folder without tokenizer files such as vocab.json")
        return config_files(config, dtype, special_ids(tokenizer)) | copied_files(tokenizer)
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = load_tokenizer(os.fspath(tokenizer))
    return config_files(config, dtype, (tokenizer.eot,) * 2) | tokenizer_files(tokenizer, config)


def their_arrays(config, params):
    """Yield the arrays of state_dict.entries, linear weights as (in, out)."""
    held, stacked = None, None
    for ours, layer, _, shape in entries(config):
        if held != ours:
            held, stacked = ours, params[ours]
        if layer is None:
            yield stacked[: shape[0]]
        else:
            yield stacked[layer].T if ours in LINEAR else stacked[layer]


def shards_of(config, dtype, shard_bytes):
    """{file name: {tensor name: shape}}, cut so that no file but that of one large tensor passes shard_bytes."""
    item = np.dtype(LAYOUT[dtype]).itemsize
    groups, room = [{}], shard_bytes
    for ours, _, theirs, shape in entries(config):
        size = math.prod(shape) * item
        if groups[-1] and size > room:
            groups.append({})
            room = shard_bytes
        groups[-1][f"transformer.{theirs}"] = shape[::-1] if ours in LINEAR else shape
        room -= size
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": group for i, group in enumerate(groups, 1)}


def index_of(shards, config, dtype):
    total = sum(math.prod(shape) for table in shards.values() for shape in table.values())
    places = {name: file for file, table in shards.items() for name in table}
    size = total * np.dtype(LAYOUT[dtype]).itemsize
    return as_json({"metadata": {"total_parameters": total, "total_size": size}, "weight_map": places})


@contextlib.contextmanager
def staging(folder):
    """A hidden folder beside `folder`, gone at the end. An OSError names files as they would have been called."""
    parent = folder.absolute().parent
    try:
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.absolute().name}.", suffix=".tmp", dir=parent))
    except OSError as error:
        error.filename = str(parent)
        raise
    try:
        yield stage
    except OSError as error:
        if error.filename is not None and Path(error.filename).parent == stage:
            error.filename = str(folder / Path(error.filename).name)
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def put_in_place(stage, folder):
    """Move the finished files to `folder`, config.json last."""
    if not folder.exists():
        stage.chmod(0o777 & ~UMASK)  # mkdtemp makes folders private
        os.rename(stage, folder)
        sync_folder(folder.absolute().parent)
        return
    for path in (folder / CONFIG, *folder.iterdir()):
        if path.name in (CONFIG, INDEX) or WEIGHTS_NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for path in sorted(stage.iterdir(), key=lambda path: path.name == CONFIG):
        os.replace(path, folder / path.name)
    sync_folder(folder)

"""Text to token shards, kept in a cache and made once.

Documents are bytes, read one at a time. An end-of-text token goes before each, as in llm.c's data.
"""

import glob
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .atomic import atomic_write
from .cache import cache_folder, make_folder
from .errors import InvalidArgument, LlmcError, Unavailable
from .headers import SHARD, kind_of
from .pieces import check_fits_shards, cut, encode_piece, held_out, pieces
from .shards import MAX_TOKENS, ShardWriter, open_shard
from .tokenizer import Tokenizer, load_tokenizer

RECIPE = 1  # raise it when the same input gives other shards, so that old caches are not taken for new ones
MANIFEST = "corpus.json"  # written last: shards without it are unfinished


@dataclass(frozen=True)
class Corpus:
    """Prepared data: glob patterns of the train and val shards, their token counts, and the vocabulary."""

    train: str
    val: str
    train_tokens: int
    val_tokens: int
    tokenizer: str
    n_vocab: int
    eot: int
    reused: bool


@dataclass(frozen=True)
class Document:
    """A named text and how to get its bytes."""

    name: str
    read: object


def prepare(sources=None, tokenizer="bytes", folder=None, val_fraction=0.1, shard_tokens=100_000_000):
    """Tokenize text into shards below `folder` (default: cache_folder()) and return the Corpus.

    sources: None for the help topics that come with Python, else a text file, a glob pattern or a list of
    files. tokenizer: a Tokenizer or what load_tokenizer takes. Held out for validation is val_fraction of
    the bytes: whole documents spread over all of them or, where these are too few, the end of each.

    The result depends on nothing but contents, tokenizer and options; it is looked up by their hash, checked,
    and made again where files are missing or damaged. Runs that prepare the same data at the same time write
    the same bytes and do no harm.

    Raises InvalidArgument for unusable options or text, Unavailable when the cache cannot be written.
    """
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    check_fits_shards(tokenizer)
    if not 0 < val_fraction < 1:
        raise InvalidArgument(f"val_fraction must be between 0 and 1, got {val_fraction}")
    if not 1 <= shard_tokens <= MAX_TOKENS:
        raise InvalidArgument(f"shard_tokens must be from 1 to {MAX_TOKENS}, got {shard_tokens}")
    stem, documents = find_documents(sources)
    key, sizes = _key(documents, tokenizer, val_fraction, shard_tokens)
    home = Path(folder if folder is not None else cache_folder()) / f"{stem}-{key[:16]}"
    counts = _finished(home, key)
    reused = counts is not None
    if not reused:
        make_folder(home, "prepared data")
        counts = _write_shards(home, stem, documents, sizes, tokenizer, val_fraction, shard_tokens)
        with atomic_write(home / MANIFEST) as file:
            file.write(json.dumps({"key": key, "tokens": counts}, indent=1).encode())
    patterns, totals = {}, {}
    for split in ("train", "val"):
        patterns[split] = os.path.join(glob.escape(str(home)), f"{glob.escape(stem)}_{split}_*.bin")
        totals[split] = sum(count for name, count in counts.items() if name.startswith(f"{stem}_{split}_"))
    return Corpus(
        patterns["train"], patterns["val"], totals["train"], totals["val"],
        tokenizer.name, tokenizer.n_vocab, tokenizer.eot, reused,
    )  # fmt: skip


def find_documents(sources=None):
    """(stem for file names, list of Document) of what `prepare` takes as sources."""
    if sources is None:
        return "pydoc", _help_topics()
    if isinstance(sources, (str, os.PathLike)):
        pattern = os.fspath(sources)
        paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not paths:
            raise InvalidArgument(f"no text file matches {pattern!r} (looked from {os.getcwd()})")
    else:
        paths = [os.fspath(path) for path in sources]
        if not paths:
            raise InvalidArgument("the list of text files is empty")
    for path in paths:
        if os.path.isdir(path):
            raise InvalidArgument(f"{path} is a folder: name the text files in it, for example {path}/*.txt")
        kind = kind_of(path)
        if kind:  # its bytes would train, and mean nothing
            raise InvalidArgument(f"{path}: a {kind.name} and no text" + (": -i takes token shards" if kind is SHARD else ""))
    stem = Path(paths[0]).stem if len(paths) == 1 else "text"
    return stem, [Document(path, Path(path).read_bytes) for path in paths]


def unigram_entropy(tokens):
    """Entropy of the token frequencies, in nats: the loss of the best model that ignores all context."""
    counts = np.unique(np.asarray(tokens), return_counts=True)[1]
    if counts.size == 0:
        raise InvalidArgument("the entropy of no tokens is undefined")
    p = counts / counts.sum()
    return float(-(p * np.log(p)).sum())


def _help_topics():
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Unavailable(
            "this Python comes without its help topics: name a text file to train on"
        ) from error
    return [Document(name, topics[name].encode) for name in sorted(topics)]


def _key(documents, tokenizer, val_fraction, shard_tokens):
    """(hash of everything the shards depend on, bytes of each document)."""
    digest = hashlib.sha256(repr((RECIPE, val_fraction, shard_tokens, tokenizer.eot)).encode())
    for text in tokenizer.table:
        digest.update(hashlib.sha256(text).digest())
    sizes = []
    for document in documents:
        raw = document.read()
        digest.update(hashlib.sha256(raw).digest())
        sizes.append(len(raw))
    return digest.hexdigest(), sizes


def _finished(home, key):
    """{file name: tokens} when the manifest is there and every shard it lists is whole, else None."""
    try:
        manifest = json.loads((home / MANIFEST).read_bytes())
        for name, count in manifest["tokens"].items():
            with open_shard(home / name) as shard:
                if shard.tokens != count:
                    return None
        return manifest["tokens"] if manifest["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, LlmcError):
        return None


def _write_shards(home, stem, documents, sizes, tokenizer, val_fraction, shard_tokens):
    writers = {split: ShardWriter(home, f"{stem}_{split}", shard_tokens) for split in ("train", "val")}
    eot = np.array([tokenizer.eot], np.uint16)
    whole = held_out(sizes, val_fraction)
    for number, document in enumerate(documents):
        raw = document.read()
        if any(whole):
            end = 0 if whole[number] else len(raw)
        else:
            end = cut(raw, len(raw) - int(len(raw) * val_fraction))
        for split, first, last in (("train", 0, end), ("val", end, len(raw))):
            if first < last:
                writers[split].append(eot)
            for piece in pieces(raw, first, last):
                writers[split].append(encode_piece(tokenizer, raw[piece], piece.start, document.name))
    counts = {}
    for split, writer in writers.items():
        written = writer.finish()
        if not written:
            raise InvalidArgument(
                f"{documents[0].name if len(documents) == 1 else 'the text'} is too short: nothing is left for "
                f"the {split} shard"
            )
        counts.update(written)
    return counts

"""Text to shards: documents in order, a part held out, complete shards, and a state to go on from."""

import glob
import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..console import count
from ..errors import FormatError, InvalidArgument, LlmcError
from ..pieces import check_fits_shards
from ..shards import ShardWriter
from ..tokenizer import Tokenizer, load_tokenizer
from .encode import PLACE, Recipe
from .inputs import find_sources, ranges
from .state import SPLITS, VERSION, StateFile, sole_user
from .workers import cores, encoder

SAVE_EVERY_S = 60.0  # besides after each shard: how much work an interruption may cost
FIRST = {"train": 1, "val": 0}  # numbers of the first shards, as in llm.c's data


@dataclass(frozen=True)
class Prepared:
    """What became of the input. counts: {split: {file name: tokens}}. documents, empty, bad: taken, without text,
    and unusable. bytes: of input. reused: all of it was there already. left_out: files of unknown kinds."""

    folder: Path
    counts: dict
    documents: int
    empty: int
    bad: int
    bytes: int
    reused: bool
    left_out: int
    eot: int

    def tokens(self, split):
        return sum(self.counts[split].values())

    def patterns(self):
        """{split: glob pattern of its shards} of those that have any."""
        found = {split: next(iter(names)).rpartition("_")[0] for split, names in self.counts.items() if names}
        folder = glob.escape(os.fspath(self.folder))
        return {split: os.path.join(folder, f"{stem}_*.bin") for split, stem in found.items()}


def prepare(
    inputs, folder="data", *, tokenizer="gpt2", shard_size=100_000_000, val=0.1, val_tokens=None, separator=None,
    text_field="text", name=None, processes=1, skip_bad=False, force=False, progress=None,
):  # fmt: skip
    """Tokenize files into shards NAME_train_000001.bin …, NAME_val_000000.bin … in `folder`; returns Prepared.

    inputs: a path, or a list of them: text, JSONL, Parquet, folders, glob patterns. separator: what stands between
    the documents of text files (None: each is one). val: fraction held out; val_tokens: the first so many tokens
    instead. processes: 0 is one a core; more than 1 need the caller's `if __name__ == "__main__":`, as all of
    multiprocessing does. progress: called with (bytes done, bytes in all). Everything else is as on the command line.

    The bytes written depend on input and settings alone. A call after an interruption goes on where it stopped, one
    with nothing left to do returns at once.

    Raises InvalidArgument, FormatError, Unavailable, StateError or OSError; shards that exist are complete.
    """
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    check_fits_shards(tokenizer)
    inputs = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    if not inputs:
        raise InvalidArgument("nothing to prepare: name a file or a folder")
    sources, left_out = find_sources(inputs, separator)
    name = check_name(name or name_of(inputs))
    recipe = Recipe(tokenizer, separator, text_field, skip_bad)
    made_from = {
        "version": VERSION, "inputs": [[os.path.abspath(s.path), s.size, s.modified] for s in sources],
        "tokenizer": fingerprint(tokenizer),
        "shard_size": shard_size, "val": val if val_tokens is None else 0, "val_tokens": val_tokens,
        "separator": separator, "text_field": text_field,
    }  # fmt: skip
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InvalidArgument(f"-o {folder}: a file, expected a folder")
    with sole_user(folder):
        state = StateFile(folder, name, made_from)
        if force:
            state.remove()
        done = state.load()
        if done.bad and not skip_bad:  # the other way round is fine: nothing was left out so far
            raise InvalidArgument(
                f"{folder}: {count(done.bad, 'document')} of {name} left out with --skip-bad: give it again, or start "
                "anew with --force"
            )
        state.clear(keep=done.saved)
        reused = done.done
        if not reused:
            job = Job(state, done, sources, recipe, shard_size, val, val_tokens)
            try:
                job.run(processes or cores(), progress or (lambda done, total: None))
            except LlmcError:
                if not state.shards():  # then nothing is worth keeping
                    state.remove()
                raise
    return Prepared(
        Path(folder), done.counts, done.documents, done.empty, done.bad, done.bytes, reused, left_out, tokenizer.eot
    )


class Job:
    """One preparation at work: `at` is its Progress."""

    def __init__(self, state, at, sources, recipe, shard_size, val, val_tokens):
        self.state, self.at, self.sources, self.recipe = state, at, sources, recipe
        self.val, self.val_tokens = 0.0 if val_tokens is not None else val, val_tokens
        self.writers = {
            split: ShardWriter(
                state.folder, f"{state.name}_{split}", shard_size, FIRST[split], at.counts[split],
                state.waiting(at, split),
            ) for split in SPLITS
        }  # fmt: skip

    def run(self, processes, progress):
        total, saved_at = sum(source.size for source in self.sources), time.monotonic()
        progress(self.at.bytes, total)
        start = self.at.source, self.at.begin
        parts = ranges(self.sources, self.recipe.separator, self.val, start)
        if not self.at.saved:  # from here on every shard has a state that explains it
            self.state.save(self.at, self.writers)
        shards = self._shards()
        with encoder(self.recipe, processes) as encode:
            for part, encoded in encode((self.sources[part.source], part) for part in parts):
                self._take(part, encoded)
                progress(self.at.bytes, total)
                if self._shards() != shards or time.monotonic() - saved_at > SAVE_EVERY_S:
                    self.state.save(self.at, self.writers)
                    shards, saved_at = self._shards(), time.monotonic()
        self._finish()
        progress(total, total)

    def _shards(self):
        return sum(len(writer.counts) for writer in self.writers.values())

    def _take(self, part, encoded):
        """Count and split the documents of one range; afterwards `at` stands behind it."""
        at, source = self.at, self.sources[part.source]
        if part.source != at.source:
            at.source, at.places = part.source, 0
        if encoded.faults and not self.recipe.skip_bad:
            place, reason = encoded.faults[0]
            raise FormatError(
                f"{source.path}: {PLACE[source.kind]} {at.places + place}: {reason} (--skip-bad leaves out such "
                "documents)"
            )
        for split, tokens in self._split(part, encoded):
            if tokens.size:
                self.writers[split].append(tokens)
                at.held += tokens.size if split == "val" else 0
                at.seen += tokens.size
        at.documents += encoded.opened
        at.empty += encoded.empty
        at.bad += len(encoded.faults)
        at.places += encoded.places
        at.bytes += part.size
        at.begin = part.end if part.size else part.begin + 1

    def _split(self, part, encoded):
        """(split, tokens) in the order of the stream."""
        tokens = encoded.tokens
        if part.split:
            return [(part.split, tokens)]
        if self.val_tokens is not None:
            left = max(0, self.val_tokens - self.at.held)
            return [("val", tokens[:left]), ("train", tokens[left:])]
        # Whole documents, each that keeps its share of the tokens so far in bounds
        seen, held, chosen = self.at.seen, self.at.held, np.zeros(encoded.lengths.size, bool)
        for number, length in enumerate(encoded.lengths.tolist()):
            seen += length
            if held + length <= self.val * seen:
                chosen[number] = True
                held += length
        mask = np.repeat(chosen, encoded.lengths)
        return [("val", tokens[mask]), ("train", tokens[~mask])]

    def _finish(self):
        for source in self.sources:
            now = os.stat(source.path)
            if (now.st_size, now.st_mtime_ns) != (source.size, source.modified):
                raise InvalidArgument(f"{source.path} was changed while it was read: start anew with --force")
        if not self.at.seen:
            others = " and the others" if len(self.sources) > 1 else ""
            raise InvalidArgument(f"{self.sources[0].path}{others}: no text in there")
        missing = [split for split, writer in self.writers.items() if not writer.tokens]
        if missing == ["train"]:
            raise InvalidArgument(f"nothing is left to train on: all {self.at.seen} tokens are held out (--val-tokens)")
        if missing == ["val"] and (self.val or self.val_tokens):
            raise InvalidArgument("too few documents to hold out a fraction of them: give --val-tokens N, or --val 0")
        for writer in self.writers.values():
            writer.finish()
        self.at.done = True
        self.state.save(self.at, self.writers)


def name_of(inputs):
    """Of a single input its own, with _ for what a file name better lacks; else "text"."""
    if len(inputs) > 1 or glob.has_magic(os.fspath(inputs[0])):
        return "text"
    return re.sub(r"[^\w.+-]+", "_", Path(inputs[0]).resolve().stem).lstrip(".") or "text"


def check_name(name):
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise InvalidArgument(f"--name {name!r}: expected letters, digits and . _ + -, to begin file names with")
    return name


def fingerprint(tokenizer):
    """Name, size and a hash of a vocabulary: a file of the same name may hold another."""
    digest = hashlib.sha256(repr((tokenizer.eot, tokenizer.table)).encode())
    return f"{os.path.basename(tokenizer.name)}, {tokenizer.n_vocab} ids, {digest.hexdigest()[:12]}"

"""How far a preparation got: a small JSON file beside its shards, from which an interrupted one goes on.

It is written after the files it speaks of and replaced in one step, so it never promises what isn't there.
"""

import contextlib
import fcntl
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..atomic import atomic_write
from ..errors import InvalidArgument, LlmcError, StateError
from ..shards import open_shard, write_shard

VERSION = 1  # raise it when the same input gives other shards
SPLITS = ("train", "val")


@dataclass
class Progress:
    """What was taken in so far. source, begin: the Range to go on with. places: lines, bytes or rows of its source
    that came before. bytes: of all input. documents, empty, bad: counted. seen, held: tokens in all, and of them
    held out."""

    source: int = 0
    begin: int = 0
    places: int = 0
    bytes: int = 0
    documents: int = 0
    empty: int = 0
    bad: int = 0
    seen: int = 0
    held: int = 0
    saved: int = 0
    done: bool = False
    counts: dict = field(default_factory=lambda: {split: {} for split in SPLITS})


class StateFile:
    """The state of the shards `name` in `folder`, made with the settings `made_from` (JSON values by name)."""

    def __init__(self, folder, name, made_from):
        self.folder, self.name, self.made_from = Path(folder), name, json.loads(json.dumps(made_from))
        self.path = self.folder / f"{name}.prepare.json"

    def load(self):
        """The Progress to go on from; a fresh one where there is nothing yet.

        Raises InvalidArgument when the shards there are of other input or settings, or of unknown origin.
        """
        try:
            found = json.loads(self.path.read_bytes())
            progress = Progress(**found["progress"])
            made_from = found["made_from"]
        except FileNotFoundError:
            shards = self.shards()
            if shards:
                raise InvalidArgument(
                    f"{shards[0]} is there already and nothing tells what it was made from: choose another --name "
                    "or -o, or replace it with --force"
                ) from None
            return Progress()
        except (ValueError, LookupError, TypeError):
            raise InvalidArgument(f"{self.path} is damaged: start anew with --force") from None
        changed = next((key for key in self.made_from if made_from.get(key) != self.made_from[key]), None)
        if changed:
            if not self.shards():  # nothing to lose: a run that stopped at bad input, which is mended now
                return Progress()
            what = difference(changed, made_from.get(changed), self.made_from[changed])
            raise InvalidArgument(
                f"{self.folder}: the shards {self.name} were begun with {what}: start anew with --force, or choose "
                "another --name or -o"
            )
        self._check(progress)
        return progress

    def waiting(self, progress, split):
        """Tokens that were encoded and are in no shard yet, None without any."""
        if progress.done or not progress.saved:
            return None
        with open_shard(self._waiting_path(split, progress.saved)) as shard:
            return shard.read(0, shard.tokens)

    def save(self, progress, writers):
        """Write down where `progress` stands, and the waiting tokens of the writers {split: ShardWriter}."""
        progress.counts = {split: dict(writers[split].counts) for split in SPLITS}
        before, progress.saved = progress.saved, progress.saved + 1
        if not progress.done:
            for split in SPLITS:
                write_shard(self._waiting_path(split, progress.saved), writers[split].waiting())
        with atomic_write(self.path) as file:
            file.write(json.dumps({"made_from": self.made_from, "progress": asdict(progress)}, indent=1).encode())
        for split in SPLITS:
            self._waiting_path(split, before).unlink(missing_ok=True)

    def clear(self, keep=None):
        """Remove what a killed run has left half-written, and waiting tokens but those of save number `keep`."""
        name, kept = re.escape(self.name), [self._waiting_path(split, keep) for split in SPLITS]
        unfinished = re.compile(
            rf"\.{name}(_(train|val)_\d{{6,}}\.bin|\.prepare\.json)\.\w+\.tmp|\.\.{name}_(train|val)_\d+\.waiting\.\w+\.tmp"
        )
        waiting = re.compile(rf"\.{name}_(train|val)_\d+\.waiting")
        for path in self.folder.iterdir():
            if unfinished.fullmatch(path.name) or (waiting.fullmatch(path.name) and path not in kept):
                path.unlink()

    def remove(self):
        """Remove the shards, too. They go first: a state without shards is recognised, shards without it are not."""
        for path in self.shards():
            path.unlink()
        self.path.unlink(missing_ok=True)
        self.clear()

    def shards(self):
        """Paths of all shards of this name."""
        pattern = re.compile(rf"{re.escape(self.name)}_(train|val)_\d{{6,}}\.bin")
        return sorted(path for path in self.folder.iterdir() if pattern.fullmatch(path.name))

    def _waiting_path(self, split, number):
        # hidden and of another suffix, so that no pattern takes it for a shard
        return self.folder / f".{self.name}_{split}_{number}.waiting"

    def _check(self, progress):
        """Raise InvalidArgument unless all that the state speaks of is whole."""
        files = [(self.folder / name, count) for split in SPLITS for name, count in progress.counts[split].items()]
        if not progress.done and progress.saved:
            files += [(self._waiting_path(split, progress.saved), None) for split in SPLITS]
        for path, count in files:
            try:
                with open_shard(path) as shard:
                    if count in (None, shard.tokens):
                        continue
                reason = f"has {shard.tokens} tokens, not the {count} it was written with"
            except FileNotFoundError:
                reason = "is gone"
            except LlmcError as error:
                reason = f"is damaged ({error})"
            raise InvalidArgument(f"{path} {reason}: start anew with --force")


def difference(key, before, now):
    """In words what changed between two values of `made_from`."""
    if key != "inputs":
        flag = f"--{key.replace('_', '-')}"
        return f"{flag} {before!r}, not {now!r}" if key != "version" else "another version of this program"
    was, now = ({path: (size, modified) for path, size, modified in rows} for rows in (before or [], now))
    for path in now:
        if path not in was:
            return f"input that didn't include {path}"
        if was[path] != now[path]:
            sizes = f"{was[path][0]} bytes, now {now[path][0]}" if was[path][0] != now[path][0] else "its time differs"
            return f"another content of {path} ({sizes})"
    gone = [path for path in was if path not in now]
    return f"input that included {gone[0]}" if gone else "the input in another order"


@contextlib.contextmanager
def sole_user(folder):
    """Keep other preparations out of the folder meanwhile, which is made if need be, and gone again if it stays empty.
    Raises StateError while one is at work there."""
    is_new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"{folder}: another preparation is at work in this folder") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
        if is_new:
            with contextlib.suppress(OSError):  # it has files in it
                os.rmdir(folder)

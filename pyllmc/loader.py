"""Token shards to batches, in the order of llm.c."""

import numpy as np

from .errors import FormatError, InvalidArgument, StateError
from .headers import HEADER_BYTES
from .optimizer_state import LoaderState
from .rng import Mt19937
from .shards import TOKEN_BYTES, find_shards, open_shard


class TokenLoader:
    """Serves batches of B sequences of T tokens and their targets, the same tokens shifted by one.

    A shard of n tokens has floor((n-1) / (world*B*T)) samples; rank r takes its B*T+1 tokens of sample i at
    (i*world + r)*B*T. With `shuffle` the order of shards, and of samples within a shard, is drawn anew each
    epoch from MT19937 seeded `seed` + rank; without, files and samples come in order. Epochs follow each
    other without end.

    With `vocab`, a token of that value or above raises FormatError naming file, position and value. One
    window of one shard is in memory at a time, whatever the size of the data. One thread loads: no locks.
    """

    def __init__(self, pattern_or_paths, B, T, *, rank=0, world=1, shuffle=False, seed=42, vocab=None):
        for name, value in (("B", B), ("T", T), ("world", world)):
            if value < 1:
                raise InvalidArgument(f"{name} must be at least 1, got {value}")
        if not 0 <= rank < world:
            raise InvalidArgument(f"rank must be from 0 to {world - 1} (world - 1), got {rank}")
        self.B, self.T, self.rank, self.world, self.shuffle, self.vocab = B, T, rank, world, shuffle, vocab
        self.paths = find_shards(pattern_or_paths)
        self._samples = [self._count_samples(path) for path in self.paths]
        self._window = np.empty(B * T + 1, "<u2")
        # The generator is kept as its stored bytes: it is used at shard ends only, and states share them.
        self._generator = Mt19937(seed + rank).to_bytes() if shuffle else None
        self._shard_order = _frozen(np.arange(len(self.paths), dtype=np.int32))
        self._sample_order = None
        self._file = None
        self.reset()

    @property
    def num_batches(self):
        """Batches that one epoch serves to each rank, all shards together."""
        return sum(self._samples)

    def reset(self):
        """Go to the first batch of a new epoch (the very first one again, when not shuffled)."""
        self._enter(0, new_epoch=True)

    def next_into(self, inputs, targets):
        """Fill two writable int32 arrays of shape (B, T) with the next batch.

        If it raises, the loader stands where it stood: a repaired file can be read on.
        """
        for name, view in (("inputs", inputs), ("targets", targets)):
            if view.shape != (self.B, self.T) or view.dtype != np.int32:
                raise InvalidArgument(
                    f"{name} must be int32 ({self.B}, {self.T}), got {view.dtype} {view.shape}"
                )
        if self._file is None:
            raise StateError("the token loader is closed")
        if self._sample == self._samples[self._index]:
            self._advance()
        start = self._start(self._sample)
        self._file.read_into(self._window, start)
        self._check_ids(start)
        np.copyto(inputs, self._window[:-1].reshape(self.B, self.T))
        np.copyto(targets, self._window[1:].reshape(self.B, self.T))
        self._sample += 1
        if self._sample < self._samples[self._index]:
            self._file.will_need(self._start(self._sample), self._window.size)

    def next_batch(self):
        """The next batch as two new int32 arrays (B, T): inputs, targets."""
        inputs, targets = np.empty((2, self.B, self.T), np.int32)
        self.next_into(inputs, targets)
        return inputs, targets

    def state(self):
        """LoaderState after the last served batch: nothing is copied, and later batches don't change it.

        Taken right after `next_into` and carried along with the batch, it stays true for that batch when a
        loading thread has long gone on.
        """
        if not self.shuffle:
            return LoaderState(self._shard, self._sample)
        return LoaderState(self._shard, self._sample, self._shard_order, self._sample_order, self._generator)

    def restore(self, state):
        """Continue after the batch at which `state` was taken, by this loader or by llm.c.

        Raises InvalidArgument, with the loader unchanged, when the state is of other data, B, T or world.
        """
        self._check_state(state)
        if self.shuffle:
            Mt19937.from_bytes(state.generator)  # refuses a damaged one
            orders = [_frozen(np.array(order, np.int32)) for order in (state.shard_order, state.sample_order)]
        index = self._index_of(state)
        self._use(self._reopen(index), index)
        if self.shuffle:
            self._shard_order, self._sample_order = orders
            self._generator = state.generator
        self._shard, self._sample = state.shard, state.sample

    def close(self):
        """Close the open shard. Closing twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _count_samples(self, path):
        with open_shard(path) as shard:
            tokens = shard.tokens
        need = self.world * self.B * self.T + 1
        if tokens < need:
            ranks = f" x {self.world} ranks" if self.world > 1 else ""
            raise InvalidArgument(
                f"{path}: too small for one batch: have {tokens} tokens, need {need} (B {self.B} x "
                f"T {self.T}{ranks} + 1 for the last target); use a smaller B or T, or a larger shard"
            )
        return (tokens - 1) // (need - 1)

    def _enter(self, shard, new_epoch=False):
        """Stand before the first sample of the shard at position `shard`; unchanged if anything fails."""
        order, samples, generator = self._shard_order, None, None
        if self.shuffle:
            random = Mt19937.from_bytes(self._generator)
            if new_epoch:
                order = order.copy()
                random.shuffle(order)
        index = int(order[shard])
        file = self._reopen(index)
        if self.shuffle:
            samples = _frozen(random.permutation(self._samples[index]))
            generator = random.to_bytes()
        self._use(file, index)
        self._shard_order, self._sample_order, self._generator = _frozen(order), samples, generator
        self._shard, self._sample = shard, 0

    def _reopen(self, index):
        shard = open_shard(self.paths[index])
        if (shard.tokens - 1) // (self.world * self.B * self.T) != self._samples[index]:
            shard.close()
            raise FormatError(f"{shard.path}: has {shard.tokens} tokens, it had another number at the start")
        return shard

    def _use(self, file, index):
        self.close()
        self._file, self._index = file, index

    def _advance(self):
        following = self._shard + 1
        if following < len(self.paths):
            self._enter(following)
        else:
            self.reset()

    def _index_of(self, state):
        """Index in `paths` of the shard a state stands in."""
        return int(state.shard_order[state.shard]) if self.shuffle else state.shard

    def _start(self, sample):
        """First token of this rank's part of the sample."""
        if self.shuffle:
            sample = int(self._sample_order[sample])
        return (sample * self.world + self.rank) * self.B * self.T

    def _check_ids(self, start):
        if self.vocab is None or self._window.max() < self.vocab:
            return
        at = int(np.argmax(self._window >= self.vocab))
        position = start + at
        raise FormatError(
            f"{self._file.path}: token {position} (byte {HEADER_BYTES + position * TOKEN_BYTES}) is "
            f"{self._window[at]}, the model's vocabulary is {self.vocab}"
        )

    def _check_state(self, state):
        if state.shuffled != self.shuffle:
            was, now = ("shuffled" if flag else "in order" for flag in (state.shuffled, self.shuffle))
            raise InvalidArgument(f"the saved loader read its data {was}, this one reads it {now}")
        if self.shuffle and len(state.shard_order) != len(self.paths):
            raise InvalidArgument(
                f"the saved loader had {len(state.shard_order)} shards, now {len(self.paths)} match"
            )
        if not 0 <= state.shard < len(self.paths):
            raise InvalidArgument(
                f"the saved loader stands in shard {state.shard}, now {len(self.paths)} match"
            )
        shard = self._index_of(state)
        have = self._samples[shard]
        saved = len(state.sample_order) if self.shuffle else have
        if saved != have or not 0 <= state.sample <= have:
            raise InvalidArgument(
                f"the saved loader stands at sample {state.sample} of {saved} in {self.paths[shard]}, "
                f"which now has {have}: resume with the same data, B, T and number of ranks"
            )


def _frozen(order):
    """`order` made read-only, so that a state can share it."""
    order.setflags(write=False)
    return order

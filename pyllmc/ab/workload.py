"""The same tokens and the same first weights for every side."""

import os
import tempfile
from pathlib import Path

import numpy as np

from ..checkpoint import write_checkpoint
from ..gpt2 import GPT2
from ..loader import TokenLoader
from ..rng import initial_params
from ..shards import MAX_ID, write_shard

SEED = 42


class Workload:
    """config: shape of the model. weights: Weights, or None for random ones. train: a pattern of token shards, or
    None for random tokens. learning_rate: small, so that the noise of rounding stays small over the
    steps in which losses are compared; no step is quicker or slower for it.

    `length` batches are served, in llm.c's shuffled order, and then from the first again; random tokens are enough of
    them for `most` tokens a batch. dtype: of the checkpoint that checkpoint() writes.
    Temporary files go with close().
    """

    def __init__(self, config, weights=None, train=None, learning_rate=1e-5, length=16, most=1, dtype="fp32"):
        self.config, self._weights, self.learning_rate, self.length = config, weights, learning_rate, length
        self._dtype, self._kept = dtype, None
        self._folder = tempfile.TemporaryDirectory(prefix="pyllmc-ab-")
        self.folder = Path(self._folder.name)
        self.pattern = None if train is None else os.path.abspath(train)  # a trainer runs in another folder
        if train is None:
            ids = np.random.default_rng(0).integers(0, min(config.vocab, MAX_ID + 1), length * most + 1)
            self.pattern = str(self.folder / "random_000000.bin")
            write_shard(self.pattern, ids)

    def batches(self, batch, seq_len):
        """[(inputs, targets)] int32 (B,T) each, `length` of them."""
        with TokenLoader(self.pattern, batch, seq_len, shuffle=True, vocab=self.config.vocab, seed=SEED) as loader:
            return [loader.next_batch() for _ in range(self.length)]

    def make_model(self, arguments):
        """A GPT2 with the first weights; the caller closes it."""
        if self._kept is not None:
            return GPT2.from_checkpoint(self._kept, **arguments)
        if self._weights is not None:
            return self._weights.load(**arguments)
        return GPT2.from_config(self.config, init_seed=SEED, **arguments)

    def checkpoint(self):
        """Path of the weights as a file of version 3 (fp32) or 5 (bf16). From its first call on every model starts
        from that file: call it before the first model, if at all."""
        if self._kept is None:
            params = self._weights.params() if self._weights else initial_params(self.config, SEED)
            path = self.folder / "weights.bin"
            write_checkpoint(path, self.config, params, self._dtype)
            self._kept = str(path)
        return self._kept

    def close(self):
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

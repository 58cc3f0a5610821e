"""Drawing tokens one after another from a model's own predictions, one continuation or several side by side."""

import numpy as np

from .batches import as_tokens, check_ids
from .errors import InvalidArgument


def stream(model, prompt_ids, max_new, temperature, top_k, top_p, seed, stop):
    """GPT2.stream. Everything is checked here, before the first token is asked for."""
    drawn = SideBySide(model, prompt_ids, max_new, (seed,), temperature, top_k, top_p, stop)
    return (token for tokens in drawn for token in tokens.values())


class SideBySide:
    """Continuations of one prompt, a row of the engine's batch for each of `seeds`; iterate to draw them.

    Each round gives {row: id} of the rows that go on. A row ends with its stop id, which is left out, or when
    the caller says end(row); `live` has those that haven't ended, `stopped` the stop id of others. Rows share
    each reading of the weights, so eight cost less than eight times one. The other arguments are GPT2.stream's.
    """

    def __init__(self, model, prompt_ids, max_new, seeds, temperature=1.0, top_k=None, top_p=None, stop=None):
        prompt = as_tokens(prompt_ids, "prompt_ids")
        if prompt.ndim != 1:
            raise InvalidArgument(f"prompt_ids must be one row of ids, got shape {prompt.shape}")
        check_ids(prompt, model.config.vocab, "prompt_ids")
        if isinstance(max_new, bool) or not hasattr(max_new, "__index__") or max_new < 0:
            raise InvalidArgument(f"max_new must be 0 or more tokens, got {max_new!r}")
        if not 1 <= len(seeds) <= model.batch:
            raise InvalidArgument(f"{len(seeds)} seeds: a batch of {model.batch} draws 1 to {model.batch} at a time")
        ffi = model.library.ffi
        try:
            self._how = ffi.new("llmc_sampling *", (temperature, top_k or 0, 1 if top_p is None else top_p))
            self._states = [ffi.new("uint64_t *", seed) for seed in seeds]
        except (TypeError, OverflowError) as error:
            raise InvalidArgument(f"sampling options: {error}") from None
        self._stops = frozenset() if stop is None else frozenset(np.ravel(as_tokens(stop, "stop")).tolist())
        self._model, self._max_new = model, max_new
        # (rows, n) ids that the engine has read, or is about to
        self._window = np.tile(prompt[-model.seq_len :].astype(np.int32), (len(seeds), 1))
        self._logits = np.empty((len(seeds), model.config.vocab), np.float32)
        self.live, self.stopped = set(range(len(seeds))), {}

    def end(self, row):
        """Draw nothing more for this row."""
        self.live.discard(row)

    def __iter__(self):
        kept = False  # whether the engine has the keys and values of all but the newest ids
        for _ in range(self._max_new):
            self._predict(kept)
            kept = True
            drawn = {row: self._sample(row) for row in sorted(self.live)}
            for row, token in drawn.items():
                if token in self._stops:
                    self.stopped[row] = token
                    self.end(row)
            newest = np.zeros((len(self._states), 1), np.int32)  # rows that have ended go on with anything
            newest[list(drawn), 0] = list(drawn.values())
            going = {row: token for row, token in drawn.items() if row in self.live}
            if going:
                yield going
            if not self.live:
                return
            self._window = np.hstack((self._window, newest))

    def _predict(self, kept):
        """The logits that follow the window: of its newest ids alone, or of all when the context is full."""
        T, call, from_buffer = self._model.seq_len, self._model.handle.call, self._model.library.ffi.from_buffer
        logits = from_buffer("float[]", self._logits)
        rows, n = self._window.shape
        if kept and n <= T:
            newest = np.ascontiguousarray(self._window[:, -1])
            call("llmc_decode", from_buffer("int32_t[]", newest), logits)
            return
        if n > T:
            self._window = self._window[:, -max(1, T // 2) :]
        read = np.ascontiguousarray(self._window)
        call("llmc_prefill", from_buffer("int32_t[]", read), rows, read.shape[1], logits)

    def _sample(self, row):
        library, token = self._model.library, self._model.library.ffi.new("int32_t *")
        logits = library.ffi.from_buffer("float[]", self._logits[row])
        library.call("llmc_sample", logits, self._logits.shape[1], self._how, self._states[row], token)
        return token[0]

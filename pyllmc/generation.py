"""Drawing tokens one after another from a model's own predictions."""

import numpy as np

from .batches import as_tokens, check_ids
from .errors import InvalidArgument


def stream(model, prompt_ids, max_new, temperature, top_k, top_p, seed, stop):
    """GPT2.stream. Everything is checked here, before the first token is asked for."""
    prompt = as_tokens(prompt_ids, "prompt_ids")
    if prompt.ndim != 1:
        raise InvalidArgument(f"prompt_ids must be one row of ids, got shape {prompt.shape}")
    vocab = model.config.vocab
    check_ids(prompt, vocab, "prompt_ids")
    if isinstance(max_new, bool) or not hasattr(max_new, "__index__") or max_new < 0:
        raise InvalidArgument(f"max_new must be 0 or more tokens, got {max_new!r}")
    ffi = model.library.ffi
    try:
        how = ffi.new("llmc_sampling *", (temperature, top_k or 0, 1 if top_p is None else top_p))
        state = ffi.new("uint64_t *", seed)
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(f"sampling options: {error}") from None
    stops = frozenset() if stop is None else frozenset(np.ravel(as_tokens(stop, "stop")).tolist())
    return _draw(model, prompt.astype(np.int32), max_new, how, state, stops)


def _draw(model, prompt, max_new, how, state, stops):
    ffi, T = model.library.ffi, model.seq_len
    logits = np.empty(model.config.vocab, np.float32)
    token, kept = ffi.new("int32_t *"), 0
    window = prompt[-T:].tolist()  # the tokens the engine has read, or is about to
    for _ in range(max_new):
        if kept and len(window) <= T:
            model.handle.call("llmc_decode", token, ffi.from_buffer("float[]", logits))
        else:
            if len(window) > T:
                window = window[-max(1, T // 2) :]
            read = ffi.new("int32_t[]", window)
            model.handle.call("llmc_prefill", read, 1, len(window), ffi.from_buffer("float[]", logits))
        kept = len(window)
        model.library.call("llmc_sample", ffi.from_buffer("float[]", logits), logits.size, how, state, token)
        drawn = token[0]
        if drawn in stops:
            return
        yield drawn
        window.append(drawn)

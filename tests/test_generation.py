"""Continuations side by side, and sampling at its limits."""

import numpy as np
import pytest

from pyllmc import GPT2, GPT2Config
from pyllmc.errors import InvalidArgument
from pyllmc.generation import SideBySide

B, T = 3, 8
CONFIG = GPT2Config(layers=2, heads=2, channels=32, vocab=61, context=12)


@pytest.fixture(scope="module")
def model():
    with GPT2.from_config(CONFIG, batch=B, seq_len=T, device="cpu") as made:
        yield made


def columns(rounds, rows):
    """The ids of each row."""
    rounds = list(rounds)
    return [[drawn[row] for drawn in rounds if row in drawn] for row in range(rows)]


def test_rows_draw_what_each_draws_alone(model):
    """Also past the context, which all slide over together."""
    found = columns(SideBySide(model, [1, 2, 3], 30, (5, 6, 7)), 3)
    assert found == [model.generate([1, 2, 3], 30, seed=seed) for seed in (5, 6, 7)]
    assert found[0] != found[1] != found[2] and len(found[0]) == 30


@pytest.mark.gpu
def test_rows_on_a_gpu_draw_what_each_draws_alone(cuda):
    exact = {"precision": "fp32", "tf32": 0, "tune": 0}
    with GPT2.from_config(CONFIG, batch=B, seq_len=T, device="cuda", **exact) as model:
        found = columns(SideBySide(model, [1, 2, 3], 30, (5, 6, 7)), 3)
        assert found == [model.generate([1, 2, 3], 30, seed=seed) for seed in (5, 6, 7)]


def test_rows_end_on_their_own(model):
    alone = [model.generate([1], 20, seed=seed) for seed in (5, 6)]
    stop = alone[0][4]
    drawn = SideBySide(model, [1], 20, (5, 6), stop=stop)
    cut = [ids[: ids.index(stop)] if stop in ids else ids for ids in alone]
    assert columns(drawn, 2) == cut
    assert drawn.stopped == {row: stop for row in (0, 1) if stop in alone[row]} and 0 not in drawn.live

    drawn, seen = SideBySide(model, [1], 20, (5, 6)), []
    for tokens in drawn:
        seen.append(tokens)
        if len(seen) == 3:
            drawn.end(1)
        if len(seen) == 6:
            drawn.end(0)
    assert columns(seen, 2) == [alone[0][:6], alone[1][:3]]


def test_more_rows_than_the_batch_has(model):
    for seeds in ((), range(B + 1)):
        with pytest.raises(InvalidArgument, match="a batch of 3 draws 1 to 3"):
            SideBySide(model, [1], 1, seeds)


@pytest.mark.parametrize("seq_len", [1, 2, 7, 8])
@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 40])
def test_any_length_and_any_context(seq_len, prompt):
    """NUM-19: longer than the context, of which the length is no multiple of anything."""
    with GPT2.from_config(CONFIG, batch=2, seq_len=seq_len, device="cpu") as narrow:
        rows = columns(SideBySide(narrow, np.arange(prompt), 21, (0, 1)), 2)
    assert [len(ids) for ids in rows] == [21, 21] and max(map(max, rows)) < CONFIG.vocab


def drawn_ids(model, logits, count, **how):
    """Ids that the engine draws from these logits."""
    ffi, values = model.library.ffi, np.array(logits, np.float32)
    options = ffi.new("llmc_sampling *", (how.get("temperature", 1.0), how.get("top_k", 0), how.get("top_p", 1.0)))
    state, token, found = ffi.new("uint64_t *", 1), ffi.new("int32_t *"), []
    for _ in range(count):
        model.library.call("llmc_sample", ffi.from_buffer("float[]", values), values.size, options, state, token)
        found.append(token[0])
    return found


@pytest.mark.parametrize("how", [{}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0}])
def test_large_and_broken_logits(model, how):
    """NUM-15: nothing overflows, and what is no distribution is an error."""
    assert set(drawn_ids(model, [95, 1, 1, 1], 1000, **how)) == {0}
    for broken in ([np.nan, 1, 2, 3], [-np.inf] * 4):
        with pytest.raises(InvalidArgument, match="NaN|finite"):
            drawn_ids(model, broken, 1, **how)


def test_padding_is_never_drawn(model):
    """NUM-17: rows of the table beyond the vocabulary, filled with what would give them all the probability."""
    plain = columns(SideBySide(model, [1], 40, (0, 1)), 2)
    table = model.params["wte"].copy()
    assert len(table) > CONFIG.vocab
    filled = table.copy()
    filled[CONFIG.vocab :] = 100
    model.params["wte"] = filled
    try:
        assert columns(SideBySide(model, [1], 40, (0, 1)), 2) == plain
    finally:
        model.params["wte"] = table


# -- what is kept is not computed again


def test_the_prompt_is_read_once(model):
    """One call for the prompt, then one token each, and half a context again when it is full."""
    calls, real = [], model.handle.call

    def counted(verb, *args):
        calls.append(args[2] if verb == "llmc_prefill" else 1)
        return real(verb, *args)

    model.handle.call = counted
    try:
        model.generate([1, 2, 3, 4], 12)
    finally:
        del model.handle.call
    assert calls == [4, 1, 1, 1, 1, T // 2, 1, 1, 1, 1, T // 2, 1]

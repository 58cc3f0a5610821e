"""Training loops that people write themselves: backward and update apart, and the README's code, which is run."""

import re

import numpy as np
import pytest
from test_gpt2 import CONFIG, B, T, batch, make, model, same, weights  # noqa: F401

from pyllmc import GPT2, GPT2Config, _find
from pyllmc.errors import InvalidArgument, StateError
from pyllmc.rundir import find_latest_complete
from pyllmc.shards import write_shard


def test_backward_and_update_are_a_step():
    with make() as whole, make() as parts:
        for round_ in range(3):
            handle = whole.step(*batch(round_), lr=1e-2, weight_decay=0.1)
            before = weights(parts)
            parts.backward(*batch(round_))
            assert same(weights(parts), before)
            assert same(dict(parts.grads.items()), dict(whole.grads.items()))
            assert parts.update(lr=1e-2, weight_decay=0.1).result().loss == handle.result().loss
            assert same(weights(parts), weights(whole))
        assert parts.updates == whole.updates == 3


@pytest.mark.parametrize("cuts", [[4], [1, 1, 1, 1], [2, 2], [1, 3]])
def test_micro_batches_may_come_apart(cuts):
    inputs, targets = batch(0, (4, B, T))
    with make() as whole, make() as parts:
        handle = whole.step(inputs, targets, lr=1e-2)
        first = 0
        for size in cuts:
            taken = slice(first, first + size)
            parts.backward(inputs[taken], targets[taken], first=first, of=4)
            first += size
        assert same(dict(parts.grads.items()), dict(whole.grads.items()))
        assert parts.update(lr=1e-2).loss == handle.loss and same(weights(parts), weights(whole))


def test_a_second_backward_replaces_the_first(model):  # noqa: F811
    model.backward(*batch(1))
    expected = model.grads["qkvw"].copy()
    model.update(lr=0.0)
    model.backward(*batch(2))
    model.backward(*batch(1))
    assert np.array_equal(model.grads["qkvw"], expected)


def test_the_order_is_watched(model):  # noqa: F811
    before = weights(model)
    with pytest.raises(StateError):
        model.update(lr=1.0)
    model.backward(*batch(), first=0, of=2)
    with pytest.raises(StateError):  # a half is missing
        model.update(lr=1.0)
    with pytest.raises((InvalidArgument, StateError)):
        model.backward(*batch(), first=2, of=3)
    for first, of in ((0, 0), (1, 1), (2, 1), (-1, 1)):
        with pytest.raises(InvalidArgument, match="1 micro-batches from number"):
            model.backward(*batch(), first=first, of=of)
    with pytest.raises(InvalidArgument, match="expected 0 to 60"):
        model.backward(np.full((B, T), 61), batch()[1])
    assert same(weights(model), before) and model.updates == 0
    model.backward(*batch())  # and every slot was given back
    assert model.update(lr=1e-3).result().finite


# -- the README's code, at the size of a test

SMALLER = {
    'from_descriptor("d12", batch=4, seq_len=1024)': "from_config(tiny, batch=2, seq_len=8)",
    '"train_*.bin", 4, 1024,': '"train_*.bin", 2, 8,', "range(100)": "range(10)", "[50256]": "[256]",
    "range(200)": "range(3)", "layers=3, heads=4, channels=128": "layers=1, heads=1, channels=16",
    "batch=8, seq_len=64": "batch=2, seq_len=8", ", 8, 64": ", 2, 8", "steps=100": "steps=4", "warmup=10": "warmup=1, val_every=2",
}  # fmt: skip


def readme_code():
    return re.findall(r"```python\n(.*?)```", (_find.CHECKOUT / "README.md").read_text(encoding="utf-8"), re.S)


def test_the_code_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYLLMC_LIBRARY", str(_find.find_library("cpu")))
    tiny = GPT2Config(layers=1, heads=1, channels=16, vocab=257, context=16)
    text = b"The quick brown fox jumps over the lazy dog.\n" * 20
    (tmp_path / "mybook.txt").write_bytes(text)
    for name in ("train_0.bin", "val_0.bin"):
        write_shard(tmp_path / name, np.frombuffer(text, np.uint8).astype(np.uint16))
    codes, used, names = readme_code(), set(), {"tiny": tiny}
    assert len(codes) == 3
    for code in codes:
        for large, small in SMALLER.items():
            used |= {large} if large in code else set()
            code = code.replace(large, small)
        exec(compile(code, "README.md", "exec"), names)  # one session, as it reads
    assert used == set(SMALLER)  # else the text has changed, and this test would train what it says
    with GPT2.from_checkpoint("model.bin", batch=1, seq_len=8, device="cpu") as saved:
        assert saved.config == tiny
    assert names["handle"].result().finite and 0 < names["best"].loss < 7
    assert find_latest_complete("runs/mine").step == 4

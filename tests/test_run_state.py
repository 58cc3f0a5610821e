"""A bf16 run's checkpoint, on a model that only keeps what it is told: what is saved, and in which order it returns."""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from pyllmc import bf16, run_state
from pyllmc.checkpoint import peek_checkpoint
from pyllmc.config import GPT2Config
from pyllmc.optimizer_state import LoaderState, read_state

CONFIG = GPT2Config(layers=1, heads=1, channels=8, vocab=20, context=4)


class Kind(Mapping):
    """One kind of tensors; like the engine's, parameters are rounded to bf16 and become the master copy."""

    def __init__(self, model, name):
        self.model, self.name, self.arrays = model, name, {}

    def __getitem__(self, name):
        return self.arrays[name]

    def __setitem__(self, name, array):
        self.model.written.append(self.name)
        if self.name == "params":
            array = bf16.widen(bf16.narrow(array))
            if self.model.options.master_weights:
                self.model.master.arrays[name] = array.copy()
        self.arrays[name] = np.array(array, np.float32)

    def __iter__(self):
        return iter(CONFIG.shapes())

    def __len__(self):
        return len(CONFIG.shapes())


class Model:
    def __init__(self, seed, master=1):
        self.config, self.updates, self.written = CONFIG, 7, []
        self.options = SimpleNamespace(precision=1, master_weights=master, rank=0, world=1, batch=1, seq_len=4)
        self.rng, self.guard = (11, 10), {"loss_seen": 3}
        self.params, self.m, self.v, self.master = (Kind(self, name) for name in ("params", "m", "v", "master"))
        random = np.random.default_rng(seed)
        for kind in (self.params, self.m, self.v, self.master):
            for name, shape in CONFIG.shapes().items():
                kind[name] = random.standard_normal(shape).astype(np.float32)
        self.written.clear()

    def bytes(self, kind):
        return b"".join(array.tobytes() for array in getattr(self, kind).values())


def test_bf16_weights_and_their_master_return_exactly(tmp_path):
    """RES-04: writing a parameter also sets its master copy, so the real master has to come later."""
    first, second = Model(1), Model(2)
    path = run_state.save(tmp_path, 7, first, LoaderState(0, 3))
    assert peek_checkpoint(path) == (CONFIG, "bf16")
    assert read_state(tmp_path / "state_00000007_00000.bin", CONFIG).master is not None
    found = run_state.restore(tmp_path, second)
    assert (found.step, found.loader, found.notes) == (7, LoaderState(0, 3), ())
    for kind in ("params", "m", "v", "master"):
        assert second.bytes(kind) == first.bytes(kind), kind
    last_param = max(i for i, kind in enumerate(second.written) if kind == "params")
    assert second.written.index("master") > last_param
    assert second.rng == 11 and second.updates == 7 and second.guard == {"loss_seen": 3}


@pytest.mark.parametrize("saved, resumed, note", [(0, 1, "no master weights"), (1, 0, "in place of their rounded copy")])
def test_master_weights_switched_between_runs(tmp_path, saved, resumed, note):
    first, second = Model(1, saved), Model(2, resumed)
    run_state.save(tmp_path, 7, first, LoaderState(0, 3))
    found = run_state.restore(tmp_path, second)
    assert note in found.notes[0]
    if saved:
        for name in CONFIG.shapes():
            np.testing.assert_array_equal(second.params[name], bf16.widen(bf16.narrow(first.master[name])))
    else:
        assert second.bytes("params") == second.bytes("master") == first.bytes("params")

"""Snapshots on a GPU: a thread downloads one while steps run, captured or not, on one stream or four."""

import itertools
import threading

import numpy as np
import oracle
import pytest
from engine import ADAM_M, ADAM_V, MASTER, PARAM, Engine, ffi, same
from test_gpu import MIXED, SMALL, STRESS_US, edges

import pyllmc
from pyllmc import bf16
from pyllmc.optimizer_state import read_state

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

KINDS = (PARAM, MASTER, ADAM_M, ADAM_V)
BATCHES = [oracle.random_batch(SMALL, 2, 32, seed) for seed in range(8)]
HYPER = {"learning_rate": 1e-2, "weight_decay": 0.1, "grad_clip": 1.0}


def make(**options):
    return Engine(SMALL, 2, 32, "cuda", oracle.random_params(SMALL), results=4, **MIXED, **options)


def enqueue(engine, steps):
    """Updates that nobody waits for, four under way at most."""
    tickets = []
    for step in steps:
        engine.micro_step(*BATCHES[step % len(BATCHES)])
        tickets.append(engine.update(step=step + 1, **HYPER))
        if len(tickets) > 3:
            engine.result(tickets.pop(0))
    return tickets


def download(engine):
    """The snapshot's kinds, in their order."""
    return [engine.read_snapshot(kind) for kind in KINDS]


@pytest.fixture(scope="module")
def serial(cuda):
    """State after 10, 20, 30 and 100 steps of a run with nothing beside it."""
    with make(streams=1, graph=0, prefetch=0) as engine:
        states, done = {}, 0
        for until in (10, 20, 30, 100):
            enqueue(engine, range(done, until))
            states[until], done = [engine.read(kind) for kind in KINDS], until
        return states


@pytest.mark.parametrize("streams, graph, stress", list(itertools.product((1, 4), (0, 1), (0, STRESS_US))))
def test_snapshots_beside_steps(serial, streams, graph, stress):
    """Taken without waiting, downloaded by a thread while the steps go on: the bits of its step, and theirs unchanged."""
    with make(streams=streams, graph=graph, stress=stress) as engine:
        done = 0
        for until in (10, 20, 30):  # at the first one graphs are being captured
            enqueue(engine, range(done, until))
            engine.call("snapshot_take")
            found = []
            thread = threading.Thread(target=lambda: found.extend(download(engine)))  # noqa: B023
            thread.start()
            done = until + 5
            enqueue(engine, range(until, done))
            thread.join()
            engine.call("snapshot_release")
            assert same(found, serial[until]), until
        enqueue(engine, range(done, 100))
        assert same([engine.read(kind) for kind in KINDS], serial[100])
        notes = ffi.string(engine.lib.llmc_model_notes(engine.handle)).decode()
    assert "graph" not in notes, notes


def test_a_thread_that_reads_all_the_time_disturbs_no_capture(serial):
    """While every graph of a run is captured, a thread downloads without a pause."""
    with make(streams=4, graph=1) as engine:
        engine.call("snapshot_take")
        stop, downloads = threading.Event(), []

        def read():
            while not stop.is_set():
                downloads.append(download(engine))

        thread = threading.Thread(target=read)
        thread.start()
        enqueue(engine, range(100))
        stop.set()
        thread.join()
        assert same([engine.read(kind) for kind in KINDS], serial[100])
        notes = ffi.string(engine.lib.llmc_model_notes(engine.handle)).decode()
    assert "graph" not in notes, notes
    assert downloads and all(same(found, downloads[0]) for found in downloads)


def test_a_download_that_does_not_wait_for_the_copy_is_noticed(serial):
    """The equality above can fail: without the event's wait a reader is ahead of a device that has much to do."""
    with make(streams=4, graph=0, stress=5000, drop_edge=edges().index("snapshot_taken")) as engine:
        enqueue(engine, range(10))
        engine.call("snapshot_take")
        early = download(engine)
        engine.call("snapshot_release")
    assert not same(early, serial[10])


def test_a_snapshot_that_leaves_too_little_is_refused(cuda):
    """A model that takes nearly all of the device's memory: needed and free are named, and the model goes on."""
    shape = pyllmc.GPT2Config(layers=12, heads=12, channels=768, vocab=50257, context=1024)
    with pyllmc.GPT2.from_config(shape, init="zeros", batch=1, seq_len=64, device="cuda") as small:
        plan = small.memory
        row = pyllmc.GPT2.memory_plan(shape, batch=9, seq_len=1024, device="cuda").total
        row -= pyllmc.GPT2.memory_plan(shape, batch=8, seq_len=1024, device="cuda").total
        rows = int((plan.device_free - plan.total - (3 << 29)) // row)
        with pyllmc.GPT2.from_config(shape, init="zeros", batch=rows, seq_len=1024, device="cuda", tune=0) as _filler:
            with pytest.raises(pyllmc.errors.OutOfMemory, match="snapshot needs .* stay free"):
                small.snapshot()
            ids = np.zeros((1, 64), np.int32)
            assert np.isfinite(small.step(ids, ids).result().loss)
        with small.snapshot() as snapshot:
            assert snapshot.updates == 1


@pytest.mark.parametrize("graph, streams", [(0, 1), (1, 4)])
def test_a_trainers_checkpoints_beside_training(tmp_path, graph, streams, monkeypatch):
    """Files of a run that saves beside its steps are, byte for byte, those of one that waits."""
    rng = np.random.default_rng(0)
    pyllmc.formats.write_shard(tmp_path / "t.bin", rng.integers(0, 300, 40 * 64 + 1))
    folders = []
    for waits in (True, False):
        folder = tmp_path / f"waits {waits}"
        folders.append(folder)
        options = {"batch": 2, "seq_len": 32, "device": "cuda", "deterministic": 1, "graph": graph, "streams": streams}
        with (
            monkeypatch.context() as patch,
            pyllmc.GPT2.from_config(SMALL, **options, precision="bf16") as model,
            pyllmc.TokenLoader(tmp_path / "t.bin", 2, 32, shuffle=True) as data,
        ):
            if waits:
                patch.setattr(pyllmc.GPT2, "snapshot", refuse)
            pyllmc.Trainer(model, data, run_dir=folder, checkpoint_every=7, steps=40, val_every=0, sample_every=0).run()
    for step in (*range(7, 40, 7), 40):
        files = [{path.name: path.read_bytes() for path in folder.glob(f"*_{step:08d}*")} for folder in folders]
        assert len(files[0]) == 4 and files[0] == files[1], step
    state = read_state(folders[0] / "state_00000007_00000.bin", SMALL)
    assert state.master is not None and not np.array_equal(state.master, bf16.widen(bf16.narrow(state.master)))


def refuse(model):
    raise pyllmc.errors.OutOfMemory("as if there were no room")

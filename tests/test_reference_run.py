"""Run folders both ways: ours are llm.c's byte for byte, and llm.c's are gone on with, wherever they stopped."""

import re
import struct

import numpy as np
import pytest
from reference_run import ReferenceLoader, model_bytes, state_bytes, write_folder
from test_run_state import CONFIG as SMALL
from test_run_state import Model
from test_trainer import CONFIG, PLAIN, B, Listed, Recorder, T, everything, make, run, shards, train_data  # noqa: F401

from pyllmc import GPT2, TokenLoader, bf16, run_state
from pyllmc.checkpoint import iter_checkpoint, peek_checkpoint
from pyllmc.errors import InvalidArgument
from pyllmc.optimizer_state import OptimizerState, read_state, write_state
from pyllmc.rundir import find_latest_complete, read_json_log, state_name
from pyllmc.shards import open_shard, write_shard
from pyllmc.trainer import Trainer

COUNTS = ([5, 5], [3, 8, 1])


def data_of(folder, counts):
    """Shards of so many batches of one row of 4, whose first token tells shard and sample."""
    for shard, count in enumerate(counts):
        write_shard(folder / f"d_{shard}.bin", 1000 * shard + np.arange(4 * count + 1))
    return str(folder / "d_*.bin")


def served(loader, n):
    """(shard, sample) of the next n batches."""
    first = [int(loader.next_batch()[0][0, 0]) for _ in range(n)]
    return [(token // 1000, token % 1000 // 4) for token in first]


def test_the_description_is_the_references(golden):
    """What these tests compare with, against llm.c's own files."""
    path = golden / "mid_state_00000010_00000.bin"
    loader = ReferenceLoader([(open_shard(shard).tokens - 1) // 256 for shard in sorted(golden.glob("bytes_train_*.bin"))])
    for _ in range(10):
        loader.next()
    raw = path.read_bytes()
    config, _ = peek_checkpoint(golden / "mid_model_00000010.bin")
    m, v = np.frombuffer(raw, "<f4", 2 * config.num_params, 1024).reshape(2, -1)
    assert raw == state_bytes(10, loader, m, v, rounding=struct.unpack_from("<2Q", raw, 80))
    params = dict(iter_checkpoint(golden / "mid_model_00000010.bin"))
    assert (golden / "mid_model_00000010.bin").read_bytes() == model_bytes(config, params, "fp32")


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_the_loader_at_every_batch(tmp_path, counts, shuffle):
    """RES-01, RES-03: at each k through two epochs, a shard's last batch and an epoch's among them, our state is the
    reference's byte for byte, and its state is gone on with by us."""
    pattern, vector = data_of(tmp_path, counts), np.zeros(SMALL.num_params, np.float32)
    theirs, ours = ReferenceLoader(counts, shuffle), TokenLoader(pattern, 1, 4, shuffle=shuffle)
    ends = 0
    for k in range(2 * sum(counts) + 2):
        write_state(tmp_path / "ours", OptimizerState(k, vector, vector, None, ours.state()))
        expected = state_bytes(k, theirs, vector, vector)
        assert (tmp_path / "ours").read_bytes() == expected, k
        ends += theirs.sample == theirs.counts[theirs.shards[theirs.shard]]
        (tmp_path / "theirs").write_bytes(expected)
        resumed = TokenLoader(pattern, 1, 4, shuffle=shuffle, seed=7)
        served(resumed, 2)  # has another shard open
        resumed.restore(read_state(tmp_path / "theirs", SMALL).loader)
        ahead = ReferenceLoader(counts, shuffle)
        order = [ahead.next() for _ in range(k + 12)]
        assert served(resumed, 12) == order[k:], k
        assert served(ours, 1) == [theirs.next()]
    assert ends == 2 * len(counts)


def test_a_saved_checkpoint_is_the_references_bytes(shards, tmp_path):  # noqa: F811
    """Model and state of a real run after 9 updates, in the second shard."""
    with train_data(shards) as loader, make() as model:
        Trainer(model, loader, run_dir=tmp_path, **{**PLAIN, "steps": 9}).run()
        flat = [np.concatenate([array.reshape(-1) for array in kind.values()]) for kind in (model.m, model.v)]
        theirs = ReferenceLoader([7, 5])
        for _ in range(9):
            theirs.next()
        expected = state_bytes(9, theirs, *flat, rounding=model.rng)
        assert model.rng[0] != model.rng[1]
        assert (tmp_path / "state_00000009_00000.bin").read_bytes() == expected
        assert (tmp_path / "model_00000009.bin").read_bytes() == model_bytes(CONFIG, model.params, "fp32")
        assert (tmp_path / "DONE_00000009").read_bytes() == b""


def test_master_weights_and_bf16_in_the_references_bytes(tmp_path):
    first = Model(1)
    theirs = ReferenceLoader([3, 8, 1])
    for _ in range(11):
        theirs.next()
    vectors = [np.frombuffer(first.bytes(kind), np.float32) for kind in ("m", "v", "master")]
    state = state_bytes(7, theirs, *vectors, rounding=first.rng)
    (tmp_path / "s").write_bytes(state)
    run_state.save(tmp_path, 7, first, read_state(tmp_path / "s", SMALL).loader)
    assert (tmp_path / "state_00000007_00000.bin").read_bytes() == state
    assert (tmp_path / "model_00000007.bin").read_bytes() == model_bytes(SMALL, first.params, "bf16")


@pytest.mark.parametrize("keeps", [1, 0])
def test_a_folder_with_master_weights(tmp_path, keeps):
    """The master weights of a bf16 folder come back exactly, also to a model that keeps none beside its weights."""
    first, second = Model(1), Model(2, keeps)
    second.guard = {"loss": [5.0] * 128, "norm": [5.0] * 128, "loss_seen": 300, "norm_seen": 300}  # of another life
    vectors = [np.frombuffer(first.bytes(kind), np.float32) for kind in ("m", "v", "master")]
    theirs = ReferenceLoader([3, 8, 1])
    write_folder(tmp_path, 20, model_bytes(SMALL, first.params, "bf16"), [state_bytes(20, theirs, *vectors, rounding=(8, 9))])
    found = run_state.restore(tmp_path, second)
    for kind in ("m", "v", *(["params", "master"] if keeps else [])):
        assert second.bytes(kind) == first.bytes(kind), kind
    if not keeps:
        assert second.bytes("params") == b"".join(
            bf16.widen(bf16.narrow(array)).tobytes() for array in first.master.values()
        )
    assert (found.step, second.rng, second.updates) == (20, 8, 20)
    assert second.guard["loss_seen"] == second.guard["norm_seen"] == 0 and not any(second.guard["loss"])
    assert any("outlier windows start empty" in note for note in found.notes), found.notes


@pytest.mark.gpu
def test_a_bf16_run_goes_on_from_the_references_files(cuda, shards, tmp_path):  # noqa: F811
    """Weights, master weights, moments and the rounding generator of a real bf16 run, through llm.c's files alone."""
    options = {"batch": B, "seq_len": T, "device": cuda, "precision": "bf16", "deterministic": 1}

    def state_of(model):
        kinds = (model.params, model.m, model.v, model.master)
        return [array.tobytes() for kind in kinds for array in kind.values()] + [model.rng, model.updates]

    with train_data(shards) as loader, GPT2.from_config(CONFIG, **options) as model:
        Trainer(model, loader, **{**PLAIN, "steps": 9}).run()
        vectors = [np.concatenate([array.reshape(-1) for array in kind.values()]) for kind in (model.m, model.v, model.master)]
        theirs = ReferenceLoader([7, 5])
        for _ in range(9):
            theirs.next()
        write_folder(tmp_path, 9, model_bytes(CONFIG, model.params, "bf16"), [state_bytes(9, theirs, *vectors, rounding=model.rng)])
        batches = [loader.next_batch() for _ in range(5)]
        for batch in batches:
            model.step(*batch, lr=1e-2).result()
        expected = state_of(model)
    with train_data(shards) as loader, GPT2.from_config(CONFIG, init="zeros", **options) as model:
        trainer = Trainer(model, loader, run_dir=tmp_path, resume=True, **{**PLAIN, "steps": 14})
        assert trainer.first_step == 9
        trainer.run()
        assert state_of(model) == expected


def test_going_on_with_a_folder_of_unequal_shards(shards, tmp_path):  # noqa: F811
    """A run of ours, put into the reference's files at every update of two epochs: the rest of it is bit for bit the
    same, with the optimizer's own memory but without our extra file."""
    steps = 26
    whole, _, end = run(shards, run_dir=tmp_path / "whole", checkpoint_every=1, steps=steps)
    assert whole.step == steps
    for at in range(1, steps):
        folder = tmp_path / f"at{at}"
        names = [f"{stem}_{at:08d}{rest}" for stem, rest in (("model", ".bin"), ("state", "_00000.bin"), ("DONE", ""))]
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        result, recorder, state = run(shards, make("zeros"), run_dir=folder, resume=True, steps=steps)
        assert result.first_step == at and len(recorder.reports) == steps - at
        assert state[:-2] == end[:-2] and state[-1] == end[-1], at  # all but the guard, whose window began anew


@pytest.mark.parametrize("micro", [1, 3, 4])
def test_the_first_batch_after_a_resume(shards, tmp_path, micro):  # noqa: F811
    """RES-07: with accumulation 4, after 3 updates, the first batch is number 12, which here begins an epoch."""
    settings = {**PLAIN, "total_tokens": micro * B * T, "checkpoint_every": 1, "run_dir": tmp_path / "whole", "steps": 6}
    with train_data(shards, kind=Listed) as loader, make() as model:
        Trainer(model, loader, **settings).run()
        whole, expected = loader.served, everything(model)
    for path in [*(tmp_path / "whole").glob("*_0*")]:
        if int(re.search(r"_(\d{8})", path.name)[1]) > 3:
            path.unlink()
    with train_data(shards, kind=Listed) as loader, make("zeros") as model:
        trainer = Trainer(model, loader, **settings, resume=True)
        assert trainer.first_step == 3
        trainer.run()
        assert loader.served[0] == whole[3 * micro] and loader.served[: 3 * micro] == whole[3 * micro : 6 * micro]
        assert everything(model) == expected


def test_outlier_windows_decide_alike_after_a_resume(shards, tmp_path):  # noqa: F811
    """Saved after 131 values: the scores, and with them which updates are skipped, are those of the unbroken run."""
    settings = {"steps": 160, "hyper": {"max_loss_z": 0.3}, "lr": 1e-6}

    def skipped(folder):
        records = [record for record in read_json_log(folder / "log.jsonl") if record["kind"] == "train"]
        return [record["step"] for record in records if record["skipped"]]

    whole = run(shards, run_dir=tmp_path / "whole", checkpoint_every=131, **settings)
    assert len(skipped(tmp_path / "whole")) > 3
    (tmp_path / "half").mkdir()
    for path in (tmp_path / "whole").glob("*_00000131*"):
        (tmp_path / "half" / path.name).write_bytes(path.read_bytes())
    half = run(shards, make("zeros"), run_dir=tmp_path / "half", resume=True, **settings)
    assert half[0].first_step == 131 and half[2] == whole[2]
    assert skipped(tmp_path / "half") == [step for step in skipped(tmp_path / "whole") if step >= 131]


# -- what can't be gone on with


@pytest.fixture
def of_two_ranks(shards, tmp_path):  # noqa: F811
    """A folder as two ranks with a sharded optimizer leave it: each holds half of every vector."""
    with make() as model:
        half = CONFIG.num_params // 2
        loaders = [ReferenceLoader([3, 2], rank=rank) for rank in (0, 1)]
        states = [state_bytes(5, loader, *np.ones((2, half), np.float32), world=2, rank=rank)
                  for rank, loader in enumerate(loaders)]  # fmt: skip
        write_folder(tmp_path / "two", 5, model_bytes(CONFIG, model.params, "fp32"), states)
        return tmp_path / "two", {name: array.tobytes() for name, array in model.params.items()}


def test_a_run_of_two_ranks_is_refused_with_the_reason(shards, of_two_ranks):  # noqa: F811
    folder, _ = of_two_ranks
    before = sorted(path.name for path in folder.iterdir())
    assert find_latest_complete(folder, world=2).step == 5
    with pytest.raises(InvalidArgument, match=r"number of ranks is 2, expected 1.*resume-weights-only"):
        run(shards, make("zeros"), run_dir=folder, resume=True, steps=6)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_the_weights_of_a_run_of_two_ranks(shards, of_two_ranks):  # noqa: F811
    """With a fresh optimizer, whatever the model's own has been through."""
    folder, params = of_two_ranks
    with make() as model, train_data(shards) as loader:
        Trainer(model, loader, **{**PLAIN, "steps": 2}).run()
        recorder = Recorder()
        trainer = Trainer(
            model, loader, callbacks=[recorder], run_dir=folder, resume=True, resume_weights_only=True, **{**PLAIN, "steps": 6}
        )
        assert {name: array.tobytes() for name, array in model.params.items()} == params
        assert model.updates == 0 and model.guard["loss_seen"] == 0
        assert not any(array.any() for kind in (model.m, model.v) for array in kind.values())
        assert trainer.run().step == 6
    assert any("number of ranks is 2" in note for note in recorder.notes)
    assert find_latest_complete(folder).step == 6 and state_name(6) in {path.name for path in folder.iterdir()}


def test_a_folder_of_the_reference_by_the_command_line(golden, tmp_path, capsys):
    """-y 1 on llm.c's own folder: goes on with its model at its step, and says what its files don't hold."""
    from pyllmc import train

    for name in ("model_00000010.bin", "state_00000010_00000.bin"):
        (tmp_path / name).write_bytes((golden / f"mid_{name}").read_bytes())
    (tmp_path / "DONE_00000010").touch()
    (tmp_path / "main.log").write_bytes((golden / "mid_main.log").read_bytes())
    words = ["-i", str(golden / "bytes_train_*.bin"), "-b", "4", "-t", "64", "-x", "11", "-v", "0", "-s", "0", "--device", "cpu",
             "-o", str(tmp_path), "-y", "1", "--no-plot"]  # fmt: skip
    assert train.main(words) == 0
    out = capsys.readouterr().out
    assert "resumed from step 10" in out and "outlier windows start empty" in out
    assert find_latest_complete(tmp_path).step == 11
    with GPT2.from_checkpoint(tmp_path / "model_00000011.bin", batch=1, seq_len=8, device="cpu") as model:
        assert model.config.vocab > 0

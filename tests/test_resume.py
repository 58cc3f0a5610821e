"""What a run can be resumed with: another batch, length, number of ranks or data; which checkpoint; from the command line."""

import json
import re

import pytest
from test_train_cli import TINY, call, here  # noqa: F401 (fixture)
from test_trainer import CONFIG, PLAIN, T, make, run, shards, train_data  # noqa: F401 (fixture)

from pyllmc import GPT2, TokenLoader
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.optimizer_state import read_state, write_state
from pyllmc.rundir import find_latest_complete
from pyllmc.trainer import Trainer


def resume(shards, folder, batch, seq_len, shuffle=True, **settings):  # noqa: F811
    with (
        GPT2.from_config(CONFIG, init="zeros", batch=batch, seq_len=seq_len, device="cpu") as model,
        TokenLoader(str(shards / "train_*.bin"), batch, seq_len, shuffle=shuffle) as loader,
    ):
        trainer = Trainer(model, loader, run_dir=folder, resume=True, **{**PLAIN, "steps": 3, **settings})
        return trainer.run(), loader.state()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch, seq_len, part", [(1, T, "batch 2, not 1.* -b 2;"), (2, 4, "seq_len 8, not 4.* -t 8;"),
                                                  (4, 4, "batch 2, not 4.* -b 2;")])  # fmt: skip
def test_another_batch_or_length(shards, tmp_path, shuffle, batch, seq_len, part):  # noqa: F811
    """The same count of batches, or of tokens in one, would not show it: data in order has no counts at all."""
    with train_data(shards, shuffle) as loader, make() as model:
        Trainer(model, loader, run_dir=tmp_path, **{**PLAIN, "steps": 2}).run()
    with pytest.raises(InvalidArgument, match=part + ".*--resume-weights-only"):
        resume(shards, tmp_path, batch, seq_len, shuffle)
    result, state = resume(shards, tmp_path, batch, seq_len, shuffle, resume_weights_only=True)
    assert (result.first_step, result.step, state.sample) == (2, 3, 1)  # the data from its beginning


def test_a_checkpoint_of_the_reference_says_no_batch(shards, tmp_path):  # noqa: F811
    """There the number of batches in the shard tells, if it differs."""
    run(shards, run_dir=tmp_path, steps=2)
    (tmp_path / "extra_00000002.json").unlink()
    with pytest.raises(InvalidArgument, match="which now has .*same data, B, T.*--resume-weights-only"):
        resume(shards, tmp_path, 1, T)
    assert resume(shards, tmp_path, 2, T)[0].step == 3


@pytest.mark.parametrize("text", ["", "[]", "null"])
def test_extra_state_that_is_none(shards, tmp_path, text):  # noqa: F811
    run(shards, run_dir=tmp_path, steps=1)
    (tmp_path / "extra_00000001.json").write_text(text)
    with pytest.raises(FormatError, match="extra_00000001.json: not the extra state"):
        run(shards, run_dir=tmp_path, resume=True)


def test_another_number_of_ranks(shards, tmp_path):  # noqa: F811
    """The states of two ranks are nothing for one; their weights are."""
    run(shards, run_dir=tmp_path, steps=2)
    path = tmp_path / "state_00000002_00000.bin"
    state = read_state(path, CONFIG)
    for rank in (0, 1):
        state.world, state.rank = 2, rank
        write_state(tmp_path / f"state_00000002_{rank:05d}.bin", state)
    (tmp_path / "DONE_abc").touch()
    with pytest.raises(InvalidArgument, match="number of ranks is 2, expected 1.*--resume-weights-only"):
        run(shards, run_dir=tmp_path, resume=True)
    result, recorder, _ = run(shards, run_dir=tmp_path, resume=True, resume_weights_only=True, steps=3)
    assert result.first_step == 2 and any("fresh optimizer" in note for note in recorder.notes)


# -- from the command line


@pytest.fixture
def started(here, capsys):  # noqa: F811
    """The words of a run of 4 updates that is there already, saved every 2."""
    words = ["--data", "text.txt", *TINY, "-v", 0, "-s", 0, "-n", 2, "-o", "run", "--no-plot"]
    assert call(capsys, *words)[0] == 0
    return [*words, "-y", 1]


def test_the_newest_complete_one(started, here, capsys):  # noqa: F811
    """CKP-05: and why others were passed over."""
    for name in ("DONE_00000300.tmp", "DONE_abc", "DONE_00000200"):
        (here / "run" / name).touch()
    status, out, _ = call(capsys, *started, "-x", 5)
    assert status == 0 and "resumed from step 4" in out
    for name, reason in (("DONE_00000200", "model_00000200.bin is missing"), ("DONE_abc", "not a marker"),
                         ("DONE_00000300.tmp", "not a marker")):  # fmt: skip
        assert re.search(rf"note: run/{name} passed over: .*{reason}", out)


def test_the_target_is_reached(started, capsys):
    """RES-11."""
    for target in (2, 4):
        status, out, _ = call(capsys, *started, "-x", target)
        assert status == 3 and f"already at step 4 of {target}: nothing to do" in out
    status, out, _ = call(capsys, *started, "-x", 5)
    assert status == 0 and "steps   4 to 5" in out and find_latest_complete("run").step == 5
    status, out, _ = call(capsys, *started, "-x", -1, "-d", 512)  # one epoch is a target, too
    assert status == 3, out


def test_weights_without_optimizer_state(started, here, capsys):  # noqa: F811
    """RES-14."""
    for path in (here / "run").glob("*_0000000[24]*"):
        if path.name != "model_00000004.bin":
            path.unlink()
    status, _, err = call(capsys, *started, "-x", 6)
    assert status == 2 and "--resume-weights-only" in err and err.count("\n") == 1
    status, out, _ = call(capsys, *started, "-x", 6, "--resume-weights-only")
    assert status == 0 and "fresh optimizer, data from its beginning" in out and "resumed from step 4" in out
    assert json.loads((here / "run" / "extra_00000006.json").read_bytes())["updates"] == 2


def test_another_batch_from_the_command_line(started, capsys):
    status, _, err = call(capsys, *started, "-x", 6, "-b", 4)
    assert status == 2 and "the run in run has batch 2, not 4" in err and err.count("\n") == 1
    status, out, _ = call(capsys, *started, "-x", 6, "-b", 4, "--resume-weights-only")
    assert status == 0 and "resumed from step 4" in out

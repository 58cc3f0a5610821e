"""python -m pyllmc.ab and pyllmc.profile on the weights that a name means: a run, a Hugging Face folder."""

import json
import sys

import hf_folder
import numpy as np
import pytest
from test_ab_reference import FAKE, ROOT
from test_train_cli import here, shards  # noqa: F401

from pyllmc import GPT2Config, train
from pyllmc.ab import command as ab
from pyllmc.checkpoint import read_checkpoint, write_checkpoint
from pyllmc.profile import __main__ as profile
from pyllmc.profile import session

CONFIG = GPT2Config(layers=1, heads=2, channels=16, vocab=300, context=24)
AB = "--device cpu --rounds 1 --steps 3 --warmup 1 --settle 1 -o out.json --no-plot".split()
PROFILE = "-b 1 -x 1 --warmup 0 --device cpu -o p".split()
STALE = "note: run/DONE_00000004 passed over: "


@pytest.fixture
def run(here, shards, capsys):  # noqa: F811
    """A run whose newest checkpoint lacks its state: the newest complete one is of step 2."""
    words = "--layers 1 --heads 2 --channels 16 --vocab 60 -b 2 -t 16 -x 4 -n 2 -l 0.1 -s 0 --device cpu --no-plot -o run"
    assert train.main([*map(str, shards), *words.split()]) == 0
    (here / "run" / "state_00000004_00000.bin").unlink()
    capsys.readouterr()
    return here / "run"


@pytest.fixture
def folder(here):  # noqa: F811
    """A Hugging Face folder, and hf.bin, the same weights."""
    params = hf_folder.random_params(CONFIG)
    write_checkpoint("hf.bin", CONFIG, params)
    return hf_folder.write_folder(here / "hf", CONFIG, hf_folder.state_dict(CONFIG, params))


@pytest.fixture
def trainer(here, monkeypatch):  # noqa: F811
    """A stand-in for llm.c's trainer, which takes its weights from a file."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_LOG", str(here / "starts"))
    (here / "trainer").write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    (here / "trainer").chmod(0o755)
    return "reference:./trainer"


def measured(capsys, model, *words):
    """(losses of each side, stdout) of an A/B."""
    status = ab.main(["-e", model, *AB, *words])
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    with open("out.json") as file:
        result = json.load(file)
    assert result["workload"]["model"] == model.rpartition("/")[2].removesuffix(".bin")
    return {name: dict(side["losses"]) for name, side in result["comparisons"][0]["sides"].items()}, printed.out


def test_ab_takes_a_run(run, capsys):
    found, out = measured(capsys, "run")
    assert STALE in out
    assert found == measured(capsys, "run/model_00000002.bin")[0] != measured(capsys, "run/model_00000004.bin")[0]


def test_ab_takes_a_hugging_face_folder(folder, capsys):
    assert measured(capsys, "hf")[0] == measured(capsys, "hf.bin")[0]


@pytest.mark.parametrize("model, same", [("run", "run/model_00000002.bin"), ("hf", "hf.bin")])
def test_llm_c_s_trainer_gets_them_as_a_file(run, folder, trainer, capsys, model, same):
    found, out = measured(capsys, model, "--b", trainer)
    assert "DIFFER" not in out and len(found["B"]) == 4
    assert all(abs(found["A"][update] - loss) < 1e-5 for update, loss in found["B"].items())
    assert found["A"] == measured(capsys, same)[0]["A"]


@pytest.mark.parametrize("model, same", [("run", "run/model_00000002.bin"), ("hf", "hf.bin")])
def test_profile_takes_them(run, folder, capsys, monkeypatch, model, same):
    loaded, make = [], session.make_model

    def spy(*arguments):
        loaded.append(make(*arguments))
        for name, array in read_checkpoint(same).params.items():
            assert np.array_equal(loaded[-1].params[name], array), name
        return loaded[-1]

    monkeypatch.setattr(session, "make_model", spy)
    status = profile.main(["-e", model, *PROFILE])
    printed = capsys.readouterr()
    assert (status, printed.err, len(loaded)) == (0, "", 1) and f"{model}, B = 1, T = " in printed.out
    assert (STALE in printed.out) == (model == "run")


@pytest.mark.parametrize("program, words", [(ab, AB), (profile, PROFILE)])
@pytest.mark.parametrize("model, part", [
    ("empty", "empty holds no model: expected model_SSSSSSSS.bin of a run, or config.json"),
    ("t5", "model_type is 't5', expected 'gpt2'"), ("gone/", "gone: no such file or folder"), ("gone.bin", "gone.bin: no such"),
    ("half", "half: neither model.safetensors nor"),
    ("d13", "d13: no such file or folder; unknown model descriptor 'd13': did you mean 'd12'?"),
    ("run_", "run_: no such file or folder; unknown"), ("gpt2", "gpt2: no such file or folder: nothing is downloaded, so fetch"),
    ("openai-community/gpt2-xl", "the folder of openai-community/gpt2-xl from Hugging Face first"),
])  # fmt: skip
def test_what_is_no_model_is_one_sentence(here, capsys, program, words, model, part):  # noqa: F811
    (here / "empty").mkdir()
    for name, changes in (("half", {}), ("t5", {"model_type": "t5"})):
        (here / name).mkdir()
        (here / name / "config.json").write_text(json.dumps(hf_folder.config_json(CONFIG, **changes)))
    assert program.main(["-e", model, *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and part in printed.err and printed.err.count("\n") == 1, printed.err
    assert not (here / "out.json").exists() and not (here / "p").exists()

"""Training that starts from other weights: a Hugging Face folder, a run folder; their vocabulary goes along."""

import json
import re
import shutil

import hf_folder
import numpy as np
import pytest
from test_train_cli import TINY, call, here, shards  # noqa: F401

from pyllmc import GPT2, GPT2Config, generate, vocabulary
from pyllmc.checkpoint import read_checkpoint
from pyllmc.errors import FormatError, Unavailable
from pyllmc.hf_tokenizer import tokenizer_files
from pyllmc.hf_vocabulary import read_vocabulary
from pyllmc.rundir import TOKENIZER, read_json_log
from pyllmc.tokenizer import Tokenizer, load_tokenizer
from pyllmc.tokenizer_file import read_tokenizer_file, write_tokenizer_file

END = b"<|endoftext|>"
OWN = Tokenizer("own", [bytes([byte]) for byte in range(256)] + [b"th", b"the", b"he", END], 259)
CONFIG = GPT2Config(layers=1, heads=2, channels=16, vocab=OWN.n_vocab, context=16)
SHORT = "-b 2 -t 16 -x 2 -k constant -l 1e-3 -u 0 -c 0 -v 1 -m 1 -s 0 --device cpu --no-plot".split()


@pytest.fixture
def folder(here):  # noqa: F811
    """A Hugging Face folder with a vocabulary of its own, written by hand but for that."""
    params = hf_folder.random_params(CONFIG)
    made = hf_folder.write_folder(here / "hf", CONFIG, hf_folder.state_dict(CONFIG, params))
    for name, content in tokenizer_files(OWN, CONFIG).items():
        (made / name).write_bytes(content)
    return made


def train_losses(run):
    return [record["loss"] for record in read_json_log(f"{run}/log.jsonl") if record["kind"] == "train"]


def test_a_hugging_face_folder(folder, capsys):
    """It trains as its conversion does, on text in its own tokens, which the run keeps."""
    with GPT2.from_pretrained(folder, batch=1, seq_len=16, device="cpu") as model:
        model.save("hf.bin")
    status, out, err = call(capsys, "-e", "hf", "--data", "text.txt", *SHORT, "-o", "r")
    assert (status, err) == (0, "") and re.search(r"model +hf: 1 layers, 2 heads, 16 channels, vocabulary 260", out), out
    write_tokenizer_file("own.bin", OWN.table, OWN.eot)
    words = ["-e", "hf.bin", "--data", "text.txt", "--tokenizer", "own.bin", *SHORT, "-o", "q"]
    assert call(capsys, *words)[0] == 0
    assert train_losses("r") == train_losses("q")
    assert read_tokenizer_file(f"r/{TOKENIZER}") == (OWN.table, OWN.eot)
    shutil.rmtree(folder)
    assert generate.main(["r", "the the", "-n", "3", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["prompt_ids"] == OWN.encode("the the").tolist()


def test_resuming_it_takes_the_same_tokens(folder, capsys):
    words = ["--data", "text.txt", *SHORT]
    assert call(capsys, "-e", "hf", *words, "-x", 4, "-o", "whole")[0] == 0
    assert call(capsys, "-e", "hf", *words, "-o", "r")[0] == 0
    shutil.rmtree(folder)
    assert call(capsys, *words, "-y", 1, "-x", 4, "-o", "r")[0] == 0  # the run's own vocabulary
    assert train_losses("r") == train_losses("whole")


def test_shards_without_its_vocabulary(here, shards, capsys):  # noqa: F811
    """As with llm.c's shards: nothing is tokenized, and samples are ids."""
    config = GPT2Config(layers=1, heads=2, channels=16, vocab=60, context=16)
    hf_folder.write_folder(here / "hf", config, hf_folder.state_dict(config, hf_folder.random_params(config)))
    status, out, err = call(capsys, *shards, "-e", here / "hf", *SHORT, "-s", 2, "-g", 5, "-o", "r")
    assert (status, err) == (0, "") and "no known tokenizer has 60 ids" in out
    assert not (here / "r" / TOKENIZER).exists()
    status, _, err = call(capsys, "--data", "text.txt", "-e", "hf", *SHORT)
    assert status == 2 and "text for hf needs its tokenizer (--tokenizer names one): no known tokenizer has 60" in err


def test_a_vocabulary_that_cannot_be_read_stops_only_text(folder, shards, capsys):  # noqa: F811
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    status, out, _ = call(capsys, *shards, "-e", "hf", *SHORT, "-s", 2, "-g", 5, "-o", "r")
    assert status == 0 and "samples are shown as ids: hf/tokenizer.json: not byte-level BPE" in out
    status, _, err = call(capsys, "--data", "text.txt", "-e", "hf", *SHORT)
    assert status == 2 and "not byte-level BPE" in err and err.count("\n") == 1


def test_a_run_folder_gives_its_latest_complete_checkpoint(here, shards, capsys):  # noqa: F811
    assert call(capsys, *shards, *TINY, "--vocab", 50, "-n", 2, "-o", "old", "--no-plot")[0] == 0
    (here / "old" / "state_00000004_00000.bin").unlink()
    words = [*shards, *SHORT, "-x", 1, "-l", 0]
    status, out, err = call(capsys, *words, "-e", "old", "-o", "new")
    assert (status, err) == (0, "") and "note: old/DONE_00000004 passed over: " in out
    assert re.search(r"model +old: ", out)
    first, found = read_checkpoint("old/model_00000002.bin"), read_checkpoint("new/model_00000001.bin")
    assert all(np.array_equal(first.params[name], found.params[name]) for name in first.params)
    status, _, err = call(capsys, *words, "-e", "old/model_00000002.bin", "-o", "same")
    assert status == 0 and train_losses("same") == train_losses("new")


def test_text_for_gpt2_weights_is_encoded_as_gpt2(here, golden, monkeypatch, capsys):  # noqa: F811
    """And not as bytes, which such a model has never seen so. The vocabulary is a file's, for want of a network."""
    gpt2 = load_tokenizer(golden / "gpt2_tokenizer.bin")
    monkeypatch.setattr(vocabulary, "load_tokenizer", {"gpt2": gpt2}.__getitem__)
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50257, context=16)
    with GPT2.from_config(config, batch=1, seq_len=16, device="cpu") as model:
        model.save("first.bin")
    status, out, err = call(capsys, "-e", "first.bin", "--data", "text.txt", *SHORT, "-o", "r")
    assert status == 0 and f"text.txt, {gpt2.name} tokens" in out, err


@pytest.mark.parametrize("words, part", [
    (["-e", "empty"], "empty holds no model: expected model_SSSSSSSS.bin of a run, or config.json"),
    (["-e", "gone/"], "gone: no such file or folder"), (["-e", "hf", "--layers", 2], "--layers can't change the weights in hf"),
    (["-e", "hf", "-t", 17], r"rows of 17 \(-t\) don't fit"), (["-e", "t5"], "model_type is 't5', expected 'gpt2'"),
    (["-e", "half"], r"half: .*model.safetensors.* is there|neither model.safetensors"),
    (["-e", "old"], "old: neither .*pytorch_model.bin can't be read"),
])  # fmt: skip
def test_what_is_no_model_is_one_sentence(folder, here, capsys, words, part):  # noqa: F811
    (here / "empty").mkdir()
    for name, changes in (("half", {}), ("old", {}), ("t5", {"model_type": "t5"})):
        (here / name).mkdir()
        (here / name / "config.json").write_text(json.dumps(hf_folder.config_json(CONFIG, **changes)))
    (here / "old" / "pytorch_model.bin").touch()
    status, _, err = call(capsys, "--data", "text.txt", "--tokenizer", "bytes", *SHORT, *words)
    assert status == 2 and re.search(part, err) and err.count("\n") == 1, err
    assert not list(here.glob("runs/*"))


# -- the vocabulary of such a folder


def whole_file(tokenizer, config, **changes):
    """tokenizer.json, which newer folders have alone, of the two older files."""
    files = tokenizer_files(tokenizer, config)
    ids = json.loads(files["vocab.json"])
    end = ids.pop(END.decode())
    pairs = files["merges.txt"].decode().splitlines()[1:]
    cut = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    model = {"type": "BPE", "vocab": ids, "merges": [pair.split(" ") for pair in pairs]}
    return {"model": model, "added_tokens": [{"id": end, "content": END.decode()}], "pre_tokenizer": cut, **changes}


@pytest.mark.parametrize("form", ["two files", "one file"])
def test_a_vocabulary_is_read_back(folder, form):
    if form == "one file":
        (folder / "tokenizer.json").write_text(json.dumps(whole_file(OWN, CONFIG)))
        (folder / "vocab.json").unlink()
        (folder / "merges.txt").unlink()
    found = read_vocabulary(folder)
    assert (found.table, found.eot) == (OWN.table, OWN.eot)
    for text in ("the other thing", "naïve 🙂 日本", "<|endoftext|>"):
        assert found.encode(text).tolist() == OWN.encode(text).tolist() and found.decode(found.encode(text)) == text


def test_gpt2s_own_vocabulary(here):  # noqa: F811
    try:
        gpt2 = load_tokenizer("gpt2")
    except Unavailable as error:
        pytest.skip(str(error))
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50257, context=16)
    for name, content in tokenizer_files(gpt2, config).items():
        (here / name).write_bytes(content)
    found = read_vocabulary(here)
    assert (found.table, found.eot) == (gpt2.table, gpt2.eot)
    assert found.encode("Hello, naïve world!").tolist() == gpt2.encode("Hello, naïve world!").tolist()


@pytest.mark.parametrize("changes, part", [
    ({"pre_tokenizer": {"type": "Whitespace"}}, "cuts text otherwise"), ({"normalizer": {"type": "NFC"}}, "cuts text otherwise"),
    ({"added_tokens": [{"id": 259, "content": END.decode()}, {"id": 260, "content": "<pad>"}]}, "merges are not in the order"),
])  # fmt: skip
def test_what_would_encode_otherwise_can_only_decode(folder, changes, part):
    (folder / "tokenizer.json").write_text(json.dumps(whole_file(OWN, CONFIG, **changes)))
    (folder / "vocab.json").unlink()
    found = read_vocabulary(folder)
    assert found.decode([257, 32, 256]) == "the th"
    with pytest.raises(Unavailable, match=f"can only decode: .*{part}"):
        found.encode("the")


def test_swapped_merges_can_only_decode(folder):
    lines = (folder / "merges.txt").read_text().splitlines()
    (folder / "merges.txt").write_text("\n".join([lines[0], lines[3], *lines[1:3]]))
    with pytest.raises(Unavailable, match="not in the order of its ids"):
        read_vocabulary(folder).encode("the")


def test_damaged_vocabularies(folder):
    ids = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({**ids, "x": 400}))
    with pytest.raises(Unavailable, match="261 tokens|260 tokens whose ids are not 0 to"):
        read_vocabulary(folder)
    for text in ("{", "[]"):
        (folder / "vocab.json").write_text(text)
        with pytest.raises(FormatError, match="vocab.json"):
            read_vocabulary(folder)

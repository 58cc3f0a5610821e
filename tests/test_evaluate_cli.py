"""python -m pyllmc.evaluate: its numbers against the float64 model, its messages, and the loss per byte beneath it."""

import json
import math
import re

import hf_folder
import numpy as np
import oracle
import pytest
from test_evaluation import CONFIG as SMALL
from test_evaluation import mean_losses, random_examples

from pyllmc import GPT2, GPT2Config, TokenLoader, evaluate
from pyllmc.cli import Parser
from pyllmc.evaluate_options import GROUPS
from pyllmc.formats import write_multiple_choice
from pyllmc.shards import write_shard
from pyllmc.tokenizer import Tokenizer, load_tokenizer
from pyllmc.tokenizer_file import write_tokenizer_file
from pyllmc.validation import text_bytes, validate

BYTES = load_tokenizer("bytes")
CONFIG = GPT2Config(layers=1, heads=2, channels=16, vocab=257, context=32)
TEXT = "naïve 🙂 日本 φ∀x.\n".encode() * 5 + bytes(range(256))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working folder with a model over bytes, a shard of two texts, an evaluation file and a model for that."""
    monkeypatch.chdir(tmp_path)
    for name, config in (("m.bin", CONFIG), ("small.bin", SMALL)):
        with GPT2.from_config(config, init="zeros", batch=1, seq_len=8, device="cpu") as model:
            for tensor, value in oracle.random_params(config).items():
                model.params[tensor] = value
            model.save(name, "fp32")
    half = len(TEXT) // 2
    tokens = [256, *TEXT[:half], 256, *TEXT[half:]]
    write_shard(tmp_path / "v_0.bin", np.array(tokens, np.uint16))
    write_multiple_choice(tmp_path / "e.bin", random_examples(23))
    return tmp_path


@pytest.fixture
def call(capsys):
    def run_command(*argv):
        try:
            status = evaluate.main([*map(str, argv), "--device", "cpu"])
        except SystemExit as ended:  # argparse
            status = ended.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run_command


def numbers(call, *argv):
    status, out, err = call(*argv, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def expected_losses(tokens, T):
    """(float64 losses, targets) of all whole rows of T tokens."""
    rows = (len(tokens) - 1) // T
    inputs, targets = (np.array(tokens[i : i + rows * T], int).reshape(rows, T) for i in (0, 1))
    return oracle.losses(oracle.widened(oracle.random_params(CONFIG)), inputs, targets, CONFIG), targets


def test_loss_and_bits_per_byte_are_those_of_the_float64_model(home, call):
    half = len(TEXT) // 2
    losses, targets = expected_losses([256, *TEXT[:half], 256, *TEXT[half:]], 16)
    found = numbers(call, "m.bin", "--data", "v_*.bin", "-b", 1, "-t", 16)
    assert found["tokens"] == losses.size and found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    is_text = targets != 256
    assert 0 < (~is_text).sum() and found["bytes"] == is_text.sum()
    bits = losses[is_text].sum() / math.log(2) / is_text.sum()
    assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-4)


def test_what_is_computed_at_once_changes_nothing(home, call):
    """Batches of 1, 2 and 4 rows serve the same tokens here; -m takes the first."""
    write_shard("w.bin", np.random.default_rng(0).integers(0, 257, 8 * 16 + 1).astype(np.uint16))
    whole = [numbers(call, "m.bin", "--data", "w.bin", "-b", b, "-t", 16) for b in (1, 2, 4)]
    assert {found["tokens"] for found in whole} == {128}
    assert whole[0]["loss"] == pytest.approx(whole[1]["loss"], rel=1e-6) == pytest.approx(whole[2]["loss"], rel=1e-6)
    assert whole[0]["bits_per_byte"] == pytest.approx(whole[2]["bits_per_byte"], rel=1e-6)
    first = numbers(call, "m.bin", "--data", "w.bin", "-b", 2, "-t", 16, "-m", 1)
    assert first["tokens"] == 32 and first["loss"] != whole[0]["loss"]


@pytest.mark.parametrize("tokenizer", [BYTES, Tokenizer("own", [*BYTES.table[:256], b"<|endoftext|>", "本".encode(), b"na\xc3"], 256)],
                         ids=["bytes", "longer tokens"])  # fmt: skip
def test_the_bytes_counted_are_those_of_the_text(tmp_path, tokenizer):
    """TOK-06: single bytes that are no text, characters in pieces, end-of-text tokens, a padded vocabulary."""
    ids, rest = [256], TEXT
    while rest:  # the longest token that fits
        ids.append(max((i for i, t in enumerate(tokenizer.table) if i != 256 and rest.startswith(t)),
                       key=lambda i: len(tokenizer.table[i])))  # fmt: skip
        rest = rest[len(tokenizer.table[ids[-1]]) :]
    ids.insert(40, 256)
    T = next(t for t in range(2, 400) if (len(ids) - 1) % t == 0)
    write_shard(tmp_path / "v.bin", np.array(ids, np.uint16))
    config = GPT2Config(layers=1, heads=1, channels=8, vocab=300, context=max(T, 8))
    with GPT2.from_config(config, batch=1, seq_len=T, device="cpu") as model, TokenLoader(tmp_path / "v.bin", 1, T) as data:
        found = validate(model, data, lengths=text_bytes(tokenizer, 300))
    assert (found.bytes, found.tokens) == (len(TEXT), len(ids) - 1)
    assert text_bytes(tokenizer, 256)[:256].tolist() == [1] * 256  # a model without the end-of-text


def test_accuracy_is_that_of_the_float64_model(home, call):
    params = oracle.random_params(SMALL)
    right = sum(int(np.argmin(mean_losses(e, params))) == e.label for e in random_examples(23))
    for words in ([], ["-b", 3], ["-b", 1]):
        found = numbers(call, "small.bin", "--hellaswag", "e.bin", *words)
        assert (found["correct"], found["count"], found["accuracy"]) == (right, 23, right / 23)
    status, out, err = call("small.bin", "--hellaswag", "e.bin")
    assert (status, err) == (0, "") and f"HellaSwag  accuracy {right / 23:.4f} ({right} of 23)\n" in out


def test_both_in_words_with_any_kind_of_model(home, call):
    with GPT2.from_checkpoint("m.bin", batch=1, seq_len=8, device="cpu") as model:
        model.save_pretrained("hf")
    status, out, err = call("hf", "--data", "v_0.bin", "--hellaswag", "e.bin")
    assert (status, err) == (0, "")
    assert re.fullmatch(
        r"model  hf: .*k parameters\nloss  \d\.\d{4} nats per token, perplexity \d+.*; \d\.\d{4} bits per byte of \d+ bytes; "
        r"\d+ tokens\nHellaSwag  accuracy 0\.\d{4} \(\d+ of 23\)\n", out
    ), out  # fmt: skip


def test_without_a_vocabulary_there_are_no_bits_per_byte(home, call):
    write_shard("w.bin", np.arange(50).astype(np.uint16))
    status, out, _ = call("small.bin", "--data", "w.bin")
    assert status == 0 and "bits per byte n/a: no known tokenizer has 60 ids" in out
    assert numbers(call, "m.bin", "--data", "w.bin", "--tokenizer", "none")["bits_per_byte"] is None
    write_tokenizer_file("tokenizer.bin", [b"ab"] * 60, 59)  # beside the weights
    assert numbers(call, "small.bin", "--data", "w.bin", "-t", 7, "-b", 7)["bytes"] == 2 * 49


def test_a_diverged_model_prints_json_that_is_json(home, call):
    params = oracle.random_params(CONFIG)
    params["lnfb"][:] = np.nan
    hf_folder.write_folder(home / "nan", CONFIG, hf_folder.state_dict(CONFIG, params))
    found = numbers(call, "nan", "--data", "v_0.bin", "--hellaswag", "e.bin")
    assert found["loss"] is None and found["accuracy"] == 0.0


@pytest.mark.parametrize("words, part", [
    (["m.bin"], "nothing to measure: --data names"), (["gone.bin", "--data", "v_0.bin"], "no such file"),
    (["m.bin", "--data", "none_*.bin"], "none_"), (["m.bin", "--data", "m.bin"], "m.bin: "),
    (["m.bin", "x", "--data", "v_0.bin"], "one model"),
    (["m.bin", "--data", "v_0.bin", "-t", 33], r"rows of 33 \(-t\)"), (["m.bin", "--data", "v_0.bin", "-b", 0], "from 1 to"),
    (["small.bin", "--data", "v_0.bin"], r"v_0.bin: token \d+ .* vocabulary is 60"),
    (["m.bin", "--data", "v_0.bin", "-m", 0], "-m must be"),
    (["m.bin", "--hellaswag", "v_0.bin"], "v_0.bin"), (["m.bin", "--hellaswag", "none.bin"], "no such file"),
    (["m.bin", "--data", "v_0.bin", "--tokenizer", "byts"], "did you mean 'bytes'"), (["m.bin", "--dta", "v"], "did you mean '--data'"),
    (["m.bin", "--data", "v_0.bin", "-b", 90, "-t", 32], "too small for one batch"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(home, call, words, part):
    status, _, err = call(*words)
    assert status == 2 and re.search(part, err) and re.fullmatch(r"pyllmc\.evaluate: .+\n", err), err


def test_help_is_the_table():
    text = re.sub(r"\s+", " ", Parser(GROUPS, prog="evaluate").format_help())
    for row in (row for group in GROUPS.values() for row in group):
        assert row.help in text and all(flag in text for flag in row.flags.split())

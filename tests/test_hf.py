"""Hugging Face folders, against files made by hand (CKP-09, CKP-11, CKP-13, CKP-15); test_hf_parity.py asks transformers."""

import json
import os

import hf_folder
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from pyllmc import GPT2, GPT2Config, bf16, hf
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.formats import read_checkpoint, write_checkpoint
from pyllmc.tokenizer import Tokenizer, load_tokenizer

CONFIG = GPT2Config(layers=2, heads=2, channels=32, vocab=61, context=12)
PARAMS = hf_folder.random_params(CONFIG)


def same(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        array = found[name]
        assert array.dtype == np.float32
        rows = len(array) if name == "wte" else None  # V or Vp rows
        np.testing.assert_array_equal(array.view(np.uint32), expected[name][:rows].view(np.uint32), err_msg=name)


def folder(path, tensors=None, **how):
    return hf_folder.write_folder(path, CONFIG, hf_folder.state_dict(CONFIG, PARAMS) if tensors is None else tensors, **how)


# -- reading


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_with_and_without_prefix_in_one_file_or_several(tmp_path, prefix, shards):
    source = hf.read_pretrained(folder(tmp_path / "m", hf_folder.state_dict(CONFIG, PARAMS, prefix), shards=shards))
    assert (source.config, source.dtype, len(source.rows)) == (CONFIG, "fp32", 4 + 12 * CONFIG.layers)
    same(source.params, PARAMS)


@pytest.mark.parametrize("code, dtype", [("BF16", "bf16"), ("F16", "fp32"), ("F32", "fp32")])
def test_dtypes_are_widened_exactly(tmp_path, code, dtype):
    exact = {name: hf_folder.truncated(array) for name, array in PARAMS.items()}
    if code == "F16":
        exact = {name: array.astype(np.float16).astype(np.float32) for name, array in PARAMS.items()}
    source = hf.read_pretrained(folder(tmp_path / "m", hf_folder.state_dict(CONFIG, exact), code=code))
    assert source.dtype == dtype
    same(source.params, exact)


def test_one_fp32_tensor_makes_a_model_fp32(tmp_path):
    codes = [("transformer.ln_f.weight", "F32")]
    assert hf.read_pretrained(folder(tmp_path / "m", code="BF16", codes=codes)).dtype == "fp32"


def test_head_alone_table_alone_or_both_are_the_same_model(tmp_path):
    """CKP-11"""
    table = hf_folder.state_dict(CONFIG, PARAMS)
    wte = table["transformer.wte.weight"]
    head = {"lm_head.weight": wte} | {name: array for name, array in table.items() if "wte" not in name}
    for name, tensors in {"table": table, "head": head, "both": {**table, "lm_head.weight": wte}}.items():
        source = hf.read_pretrained(folder(tmp_path / name, tensors))
        same(source.params, PARAMS)
        assert {row.name for row in source.rows} == set(tensors)  # each is accounted for
    other = wte.copy()
    other[7, 3] += 1
    with pytest.raises(FormatError, match="lm_head.weight differs from the token table in 1 of 61 rows"):
        hf.read_pretrained(folder(tmp_path / "different", {**table, "lm_head.weight": other}))
    with pytest.raises(FormatError, match="said to be untied.*lm_head.weight is not there"):
        hf.read_pretrained(folder(tmp_path / "untied", table, tie_word_embeddings=False))


def test_masks_of_older_files_go_nowhere_knowingly(tmp_path):
    masks = {f"transformer.h.{i}.attn.bias": np.tril(np.ones((1, 1, 12, 12), np.uint8)) for i in range(2)}
    masks |= {f"transformer.h.{i}.attn.masked_bias": np.float32(-1e4).reshape(()) for i in range(2)}
    codes = [(name, "U8") for name in masks if not name.endswith("masked_bias")]
    source = hf.read_pretrained(folder(tmp_path / "m", hf_folder.state_dict(CONFIG, PARAMS) | masks, codes=codes))
    same(source.params, PARAMS)
    assert {row.name for row in source.rows if row.where.startswith("nowhere")} == set(masks)


def test_what_is_missing_unknown_or_misshapen_is_listed(tmp_path):
    good = hf_folder.state_dict(CONFIG, PARAMS)
    odd = {name: array for name, array in good.items() if ".h.1.ln_2" not in name} | {"score.weight": np.ones(3, np.float32)}
    with pytest.raises(FormatError) as error:
        hf.read_pretrained(folder(tmp_path / "a", odd))
    said = str(error.value)
    assert "missing tensors: h.1.ln_2.weight, h.1.ln_2.bias; tensors that no GPT-2 has: score.weight" in said
    untransposed = hf_folder.state_dict(CONFIG, PARAMS, conv1d=False)
    with pytest.raises(FormatError, match=r"h.0.attn.c_attn.weight has shape \(96, 32\), expected \(32, 96\)"):
        hf.read_pretrained(folder(tmp_path / "b", untransposed))
    with pytest.raises(FormatError, match="model without biases"):
        hf.read_pretrained(folder(tmp_path / "c", {name: array for name, array in good.items() if "weight" in name}))
    with pytest.raises(FormatError, match="transformer.wpe.weight is F64, expected fp32"):
        hf.read_pretrained(folder(tmp_path / "d", codes=[("transformer.wpe.weight", "F64")]))
    with pytest.raises(FormatError, match="wte.weight and transformer.wte.weight are the same"):
        hf.read_pretrained(folder(tmp_path / "e", {"wte.weight": good["transformer.wte.weight"]} | good))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected 'gpt2'"),
        ({"model_type": "absent"}, "model_type is None"),
        ({"activation_function": "gelu"}, "activation_function is 'gelu', expected 'gelu_new': .*tanh form"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, expected 1e-05"),
        ({"n_inner": 64}, "n_inner is 64, expected null or 128"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, expected True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"n_head": "absent", "n_layer": "absent"}, "lacks n_layer, n_head"),
        ({"n_head": 3}, "channels .32. must be divisible by heads .3."),
        ({"vocab_size": "61"}, "vocab must be an integer"),
        ({"vocab_size": 60}, r"wte.weight has shape \(61, 32\), expected \(60, 32\)"),
        ({"n_layer": 3}, "missing tensors: h.2.ln_1.weight"),
        ({"n_layer": 2**31 - 1}, "2147483647 layers .* only 28 tensors"),
        ({"n_layer": 1}, "no GPT-2 has: transformer.h.1"),
    ],
)
def test_a_model_the_engine_would_compute_wrongly_is_refused(tmp_path, change, said):
    with pytest.raises(FormatError, match=said):
        hf.read_pretrained(folder(tmp_path / "m", **change))


def test_what_is_accepted_in_a_config(tmp_path):
    hf.read_pretrained(folder(tmp_path / "a", n_inner=128, layer_norm_epsilon=1e-5, scale_attn_weights=True))
    hf.read_pretrained(folder(tmp_path / "b", activation_function="absent"))  # transformers' default is gelu_new


def test_damaged_folders(tmp_path):
    with pytest.raises(InvalidArgument, match="no such folder"):
        hf.read_pretrained(tmp_path / "gpt2")
    whole = folder(tmp_path / "a") / "model.safetensors"
    whole.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(FormatError, match="not a whole safetensors file"):
        hf.read_pretrained(tmp_path / "a")
    whole.unlink()
    (tmp_path / "a" / "pytorch_model.bin").touch()
    with pytest.raises(FormatError, match=r"neither model.safetensors nor .* \(pytorch_model.bin can't be read"):
        hf.read_pretrained(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(FormatError, match="config.json: not JSON"):
        hf.read_pretrained(tmp_path / "a")
    shards = folder(tmp_path / "b", shards=3)
    os.rename(shards / "model-00001-of-00003.safetensors", shards / "model-00002-of-00003.safetensors")
    with pytest.raises(FormatError, match="model-00001-of-00003.safetensors, which is not in the folder"):
        hf.read_pretrained(shards)
    (shards / "model-00002-of-00003.safetensors").rename(shards / "model-00001-of-00003.safetensors")
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": "../secret.safetensors"}}))
    with pytest.raises(FormatError, match="weight_map must name a file of this folder"):
        hf.read_pretrained(shards)
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": "model-00001-of-00003.safetensors"}}))
    with pytest.raises(FormatError, match="holds other tensors than"):
        hf.read_pretrained(shards)


# -- writing


@pytest.mark.parametrize("vocab", [61, 512])
def test_export_drops_the_padding_and_nothing_else(tmp_path, vocab):
    """CKP-09: also where there is none. CKP-13: square matrices come transposed."""
    config = GPT2Config(2, 2, 32, vocab, 12)
    params = hf_folder.random_params(config)
    assert hf.write_pretrained(tmp_path / "m", config, params) == [
        "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip
    found = safetensors.numpy.load_file(tmp_path / "m" / "model.safetensors")
    expected = hf_folder.state_dict(config, params)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert found["transformer.wte.weight"].shape == (vocab, 32)


def test_config_says_what_the_engine_computes(tmp_path):
    """CKP-15"""
    hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS, "bf16")
    said = json.loads((tmp_path / "m" / "config.json").read_text())
    expected = {
        "model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_positions": 12,
        "vocab_size": 61, "torch_dtype": "bfloat16", "tie_word_embeddings": True, "eos_token_id": None, "n_layer": 2,
        "n_head": 2, "n_embd": 32,
    }  # fmt: skip
    assert expected.items() <= said.items()
    config = GPT2Config(1, 1, 4, 50257, 8)
    hf.write_pretrained(tmp_path / "g", config, hf_folder.random_params(config))
    for name in ("config.json", "generation_config.json"):
        said = json.loads((tmp_path / "g" / name).read_text())
        assert said["bos_token_id"] == said["eos_token_id"] == 50256


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_there_and_back_is_bit_equal(tmp_path, dtype):
    exact = {name: array.copy() if dtype == "fp32" else hf_folder.truncated(array) for name, array in PARAMS.items()}
    exact["wpe"][0, :4] = [-0.0, np.inf, 1e-40 if dtype == "fp32" else 2.0**-130, -np.nan]
    write_checkpoint(tmp_path / "a.bin", CONFIG, exact, dtype)
    hf.write_pretrained(tmp_path / "m", CONFIG, exact, dtype)
    source = hf.read_pretrained(tmp_path / "m")
    assert source.dtype == dtype
    write_checkpoint(tmp_path / "b.bin", source.config, source.params, source.dtype)
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


def test_bf16_export_rounds_to_nearest_even(tmp_path):
    hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS, "bf16")
    same(hf.read_pretrained(tmp_path / "m").params, {n: bf16.widen(bf16.narrow(array)) for n, array in PARAMS.items()})


def test_large_models_are_cut_into_shards(tmp_path):
    names = hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS, shard_bytes=20_000)
    weights = [name for name in names if name.endswith(".safetensors")]
    assert len(weights) > 3 and names[-1] == "model.safetensors.index.json"
    assert all((tmp_path / "m" / name).stat().st_size < 20_000 + 4096 for name in weights)  # 4096: a header
    same(hf.read_pretrained(tmp_path / "m").params, PARAMS)
    index = json.loads((tmp_path / "m" / names[-1]).read_text())
    assert index["metadata"]["total_size"] == 4 * sum(a.size for a in hf_folder.state_dict(CONFIG, PARAMS).values())
    for name, place in index["weight_map"].items():
        with safetensors.safe_open(tmp_path / "m" / place, "numpy") as file:
            assert name in file.keys()


def test_replacing_takes_force_and_leaves_other_files(tmp_path):
    hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS, shard_bytes=20_000)
    (tmp_path / "m" / "README.md").write_text("mine")
    before = sorted(path.name for path in (tmp_path / "m").iterdir())
    changed = PARAMS | {"lnfb": PARAMS["lnfb"] + 1}
    with pytest.raises(InvalidArgument, match="is not empty"):
        hf.write_pretrained(tmp_path / "m", CONFIG, changed)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == before
    hf.write_pretrained(tmp_path / "m", CONFIG, changed, force=True)
    same(hf.read_pretrained(tmp_path / "m").params, changed)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_leaves_everything_as_it_was(tmp_path, exists):
    if exists:
        hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS)
    for bad in ({"lnfb": np.zeros(31, np.float32)}, {"wpe": np.zeros((11, 32), np.float32)}):
        with pytest.raises(InvalidArgument, match=r"has shape .*, expected \((12, )?32"):
            hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS | bad, force=True)
    if exists:
        same(hf.read_pretrained(tmp_path / "m").params, PARAMS)
    assert [path.name for path in tmp_path.iterdir()] == ["m"] * exists


def test_targets_that_cannot_be(tmp_path):
    with pytest.raises(InvalidArgument, match="does not exist"):
        hf.write_pretrained(tmp_path / "none" / "m", CONFIG, PARAMS)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match="is a file"):
        hf.write_pretrained(tmp_path / "file", CONFIG, PARAMS, force=True)
    with pytest.raises(InvalidArgument, match="dtype 'fp16'"):
        hf.write_pretrained(tmp_path / "m", CONFIG, PARAMS, "fp16")


# -- tokenizer files


def test_merges_are_found_again(tmp_path):
    """A vocabulary built by known merges gives those merges, in their order."""
    pairs = [(b" ", b"t"), (b"h", b"e"), (b" t", b"he"), (b"t", b"he"), (b"\n", b"\n"), (b"the", b"n")]
    table = [bytes([byte]) for byte in range(256)] + [a + b for a, b in pairs] + [b"<|endoftext|>"]
    config = GPT2Config(1, 1, 4, 300, 8)
    tokenizer = Tokenizer("small", table, len(table) - 1)
    hf.write_pretrained(tmp_path / "m", config, hf_folder.random_params(config), tokenizer=tokenizer)
    merges = (tmp_path / "m" / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert merges == ["#version: 0.2", "Ġ t", "h e", "Ġt he", "t he", "Ċ Ċ", "the n"]
    vocab = json.loads((tmp_path / "m" / "vocab.json").read_text(encoding="utf-8"))
    assert sorted(vocab.values()) == list(range(263))
    assert (vocab["Ġthe"], vocab["<|endoftext|>"], vocab["A"], vocab["Ā"]) == (258, 262, 65, 0)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["eos_token_id"] == 262


def test_tokenizer_files_are_copied_from_a_folder_and_must_fit(tmp_path):
    config = GPT2Config(1, 1, 4, 257, 8)
    params = hf_folder.random_params(config)
    hf.write_pretrained(tmp_path / "a", config, params, tokenizer="bytes")
    hf.write_pretrained(tmp_path / "b", config, params, tokenizer=tmp_path / "a")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "b" / "config.json").read_text())["eos_token_id"] == 256
    with pytest.raises(InvalidArgument, match="has 257 tokens, expected at most the model's 61"):
        hf.write_pretrained(tmp_path / "c", CONFIG, PARAMS, tokenizer=load_tokenizer("bytes"))
    assert not (tmp_path / "c").exists()


# -- the model class


def test_model_from_and_to_a_folder(tmp_path, backend):
    with GPT2.from_pretrained(folder(tmp_path / "m"), batch=1, seq_len=8, device=backend, precision="fp32") as model:
        same(dict(model.params), PARAMS)
        model.save_pretrained(tmp_path / "out")
        model.save(tmp_path / "out.bin")
    source = hf.read_pretrained(tmp_path / "out")
    assert source.dtype == "fp32"
    same(source.params, read_checkpoint(tmp_path / "out.bin").params)


@pytest.mark.gpu
def test_bf16_model_keeps_its_bits(tmp_path, cuda):
    exact = {name: hf_folder.truncated(array) for name, array in PARAMS.items()}
    where = folder(tmp_path / "m", hf_folder.state_dict(CONFIG, exact), code="BF16")
    with GPT2.from_pretrained(where, batch=1, seq_len=8, device=cuda, precision="bf16") as model:
        model.save_pretrained(tmp_path / "out")
    source = hf.read_pretrained(tmp_path / "out")
    assert source.dtype == "bf16"
    same(source.params, exact)

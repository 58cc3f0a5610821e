"""Folders and .pt files of torch and transformers themselves, both ways, judged by logits and bits (extra: parity)."""

import hf_folder
import numpy as np
import pytest

from pyllmc import GPT2, GPT2Config, hf
from pyllmc.nanogpt import read_state_dict
from pyllmc.tokenizer import load_tokenizer

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

LIMIT = 1e-4  # largest difference of a logit, in fp32
SHAPES = {
    "plain": GPT2Config(2, 2, 32, 61, 12),
    "V=Vp": GPT2Config(2, 2, 32, 512, 12),  # CKP-09
    "three heads": GPT2Config(3, 3, 48, 257, 7),
}
shapes = pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
TEXT = "It's 3 o'clock.\n\n  Naïve café, 東京 \t end"


def tokens(config):
    return np.random.default_rng(0).integers(0, config.vocab, (2, config.context))


def their_model(config):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab, n_positions=config.context, n_embd=config.channels, n_layer=config.layers,
            n_head=config.heads, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    with torch.no_grad():  # biases not 0, gains not 1: nothing may hide
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def their_logits(model, config):
    with torch.no_grad():
        return model(torch.tensor(tokens(config))).logits.float().numpy()


def our_logits(model, config):
    return model.logits(tokens(config))


def distance(a, b):
    assert a.shape == b.shape and np.abs(b).max() > 0.1
    return np.abs(a - b).max()


def loaded(folder, **arguments):
    return transformers.GPT2LMHeadModel.from_pretrained(folder, local_files_only=True, **arguments).eval()


@shapes
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_their_folder_gives_their_logits(tmp_path, config, shard, backend):
    theirs = their_model(config)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    with GPT2.from_pretrained(tmp_path, batch=2, seq_len=config.context, device=backend, precision="fp32", tf32=0) as model:
        assert distance(our_logits(model, config), their_logits(theirs, config)) < LIMIT


def test_the_body_alone(tmp_path):
    """GPT2Model: names without "transformer.", no head."""
    config = SHAPES["plain"]
    theirs = their_model(config)
    theirs.transformer.save_pretrained(tmp_path)
    with GPT2.from_pretrained(tmp_path, batch=2, seq_len=config.context, device="cpu") as model:
        assert distance(our_logits(model, config), their_logits(theirs, config)) < LIMIT


@shapes
def test_our_folder_gives_our_logits(tmp_path, config, backend):
    """CKP-09, CKP-11, CKP-13: every weight is random, so a missing transposition of a square one would show."""
    folder = hf_folder.write_folder(tmp_path / "a", config, hf_folder.state_dict(config, hf_folder.random_params(config)))
    with GPT2.from_pretrained(folder, batch=2, seq_len=config.context, device=backend, precision="fp32", tf32=0) as model:
        model.save_pretrained(tmp_path / "b")
        expected = our_logits(model, config)
    theirs = loaded(tmp_path / "b")
    assert theirs.transformer.wte.weight.shape == (config.vocab, config.channels)
    assert theirs.lm_head.weight.data_ptr() == theirs.transformer.wte.weight.data_ptr()
    assert distance(their_logits(theirs, config), expected) < LIMIT


def test_nothing_is_left_random(tmp_path):
    config = SHAPES["plain"]
    hf.write_pretrained(tmp_path / "m", config, hf_folder.random_params(config), shard_bytes=20_000)
    _, about = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_gelu_is_the_same_from_minus_4_to_4(tmp_path):
    """CKP-15, and that the exact GELU would be noticed."""
    config = SHAPES["plain"]
    params = hf_folder.random_params(config)
    params["fcw"] *= 0.01
    params["fcb"][:] = np.linspace(-4, 4, params["fcb"].shape[1])
    hf.write_pretrained(tmp_path / "m", config, params)
    with GPT2.from_pretrained(tmp_path / "m", batch=2, seq_len=config.context, device="cpu") as model:
        expected = our_logits(model, config)
    theirs = loaded(tmp_path / "m")
    assert (theirs.config.activation_function, theirs.config.layer_norm_epsilon) == ("gelu_new", 1e-5)
    assert distance(their_logits(theirs, config), expected) < 1e-5
    assert distance(their_logits(loaded(tmp_path / "m", activation_function="gelu"), config), expected) > 1e-4


def test_bf16_keeps_its_bits_both_ways(tmp_path):
    config = SHAPES["plain"]
    theirs = their_model(config).bfloat16()
    theirs.save_pretrained(tmp_path / "a")
    source = hf.read_pretrained(tmp_path / "a")
    assert source.dtype == "bf16"
    hf.write_pretrained(tmp_path / "b", source.config, source.params, source.dtype)
    back = loaded(tmp_path / "b", torch_dtype="auto")  # the word of transformers 4, which 5 takes too
    assert back.dtype == torch.bfloat16
    for (name, ours), (_, expected) in zip(back.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.equal(ours.view(torch.int16), expected.view(torch.int16)), name


def test_nanogpt_checkpoint_by_torch(tmp_path):
    """As nanoGPT saves: compiled, linear layers (out, in), head and table one storage, an optimizer beside them."""
    config = SHAPES["plain"]
    theirs = their_model(config)
    optimizer = torch.optim.AdamW(theirs.parameters())
    theirs(torch.tensor(tokens(config)), labels=torch.tensor(tokens(config))).loss.backward()
    expected = their_logits(theirs, config)
    weights = theirs.state_dict()
    linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    nano = {f"_orig_mod.{k}": v.t().contiguous() if k.endswith(linear) else v for k, v in weights.items()}
    assert nano["_orig_mod.lm_head.weight"].data_ptr() == nano["_orig_mod.transformer.wte.weight"].data_ptr()
    arguments = {
        "n_layer": config.layers, "n_head": config.heads, "n_embd": config.channels, "block_size": config.context,
        "bias": True, "vocab_size": config.vocab, "dropout": 0.0,
    }  # fmt: skip
    saved = {name: array.clone() for name, array in nano.items()}
    saved["_orig_mod.lm_head.weight"] = saved["_orig_mod.transformer.wte.weight"]
    optimizer.step()
    torch.save({"model": saved, "model_args": arguments, "optimizer": optimizer.state_dict(), "iter_num": 1,
                "best_val_loss": torch.tensor(1.5), "config": {"device": "cuda"}}, tmp_path / "ckpt.pt")  # fmt: skip
    source = read_state_dict(tmp_path / "ckpt.pt")
    assert source.config == config
    hf.write_pretrained(tmp_path / "m", config, source.params)
    with GPT2.from_pretrained(tmp_path / "m", batch=2, seq_len=config.context, device="cpu") as model:
        assert distance(our_logits(model, config), expected) < LIMIT


def test_state_dict_by_torch(tmp_path):
    """Views with other strides, parameters, bf16, and an object that isn't a tensor."""
    config = SHAPES["three heads"]
    theirs = their_model(config).bfloat16()
    weights = {k: torch.nn.Parameter(v.t().contiguous().t()) if v.dim() == 2 else v for k, v in theirs.state_dict().items()}
    torch.save(weights, tmp_path / "a.pt")
    source = read_state_dict(tmp_path / "a.pt", heads=config.heads)
    assert source.dtype == "bf16"
    expected = theirs.float().transformer.h[2].attn.c_proj.weight.detach().numpy().T
    np.testing.assert_array_equal(source.params["attprojw"][2], expected)
    torch.save(theirs, tmp_path / "b.pt")  # the module, not its state dict
    with pytest.raises(ValueError, match="asks for transformers.*GPT2LMHeadModel"):
        read_state_dict(tmp_path / "b.pt", heads=config.heads)


def test_bytes_as_their_tokenizer(tmp_path):
    config = SHAPES["three heads"]
    hf.write_pretrained(tmp_path / "m", config, hf_folder.random_params(config), tokenizer="bytes")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m", local_files_only=True)
    assert theirs.encode(TEXT) == list(TEXT.encode())
    assert theirs.decode(theirs.encode(TEXT)) == TEXT
    assert theirs.eos_token_id == 256


def test_gpt2_as_their_tokenizer(tmp_path, golden):
    ours = load_tokenizer(golden / "gpt2_tokenizer.bin")
    config = GPT2Config(1, 1, 4, 50257, 8)
    hf.write_pretrained(tmp_path / "m", config, hf_folder.random_params(config), tokenizer=ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m", local_files_only=True)
    assert theirs.encode(TEXT) == ours.encode(TEXT).tolist()
    assert theirs.eos_token_id == 50256

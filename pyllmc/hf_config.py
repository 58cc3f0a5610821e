"""Hugging Face's config.json of a GPT-2: what this engine can compute of it, and what it writes."""

import json
from pathlib import Path

from .config import GPT2_VOCAB, GPT2Config
from .errors import FormatError, InvalidArgument

CONFIG, GENERATION = "config.json", "generation_config.json"
SIZES = {  # their key: ours
    "n_layer": "layers", "n_head": "heads", "n_embd": "channels", "vocab_size": "vocab", "n_positions": "context",
}  # fmt: skip
EPSILON = 1e-5
# key: (accepted values, the first being what an absent key means; why no other)
FIXED = {
    "activation_function": (("gelu_new", "gelu_pytorch_tanh"), "the engine computes GELU in the tanh form alone"),
    "layer_norm_epsilon": ((EPSILON,), "the engine's LayerNorm has that one built in"),
    "scale_attn_weights": ((True,), "the engine divides attention scores by the root of the head size"),
    "scale_attn_by_inverse_layer_idx": ((False,), "the engine scales attention alike in every layer"),
    "add_cross_attention": ((False,), "the engine has no cross attention"),
    "quantization_config": ((None,), "the engine reads weights that are not quantized"),
}
DTYPE = {"fp32": "float32", "bf16": "bfloat16"}


def read_config(folder):
    """(GPT2Config, whether the output head is tied) of a folder.

    Raises FormatError for a model that isn't GPT-2 as this engine computes it, with the key and the reason.
    """
    path = Path(folder) / CONFIG
    found = read_json(path)
    if found.get("model_type") != "gpt2":
        raise FormatError(f"{path}: model_type is {found.get('model_type')!r}, expected 'gpt2'")
    for key, (accepted, why) in FIXED.items():
        value = found.get(key, accepted[0])
        if value not in accepted:
            raise FormatError(f"{path}: {key} is {value!r}, expected {accepted[0]!r}: {why}")
    missing = [key for key in SIZES if key not in found]
    if missing:
        raise FormatError(f"{path}: lacks {', '.join(missing)}")
    try:
        config = GPT2Config(**{ours: found[key] for key, ours in SIZES.items()})
    except InvalidArgument as error:
        raise FormatError(f"{path}: {error}") from None
    if found.get("n_inner") not in (None, 4 * config.channels):
        raise FormatError(
            f"{path}: n_inner is {found['n_inner']!r}, expected null or {4 * config.channels}: the engine's MLP is "
            "four times as wide as the model"
        )
    return config, bool(found.get("tie_word_embeddings", True))


def read_json(path):
    """The object in a JSON file. Raises FormatError, OSError."""
    try:
        found = json.loads(Path(path).read_bytes())
    except ValueError as error:  # no JSON, or no UTF-8
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def special_ids(folder):
    """(bos, eos) ids that the config.json of a folder says, None where it doesn't."""
    path = Path(folder) / CONFIG
    said = read_json(path) if path.is_file() else {}
    return tuple(said[key] if type(said.get(key)) is int else None for key in ("bos_token_id", "eos_token_id"))


def config_files(config, dtype, ids=(None, None)):
    """{file name: bytes} of config.json and generation_config.json for weights of `dtype`.

    ids: of the first and the last token of a text, where they are known; 50257 tokens are taken for GPT-2's.
    """
    if ids == (None, None) and config.vocab == GPT2_VOCAB:
        ids = (GPT2_VOCAB - 1,) * 2
    # null where unknown: without the key transformers takes GPT-2's
    ids = dict(zip(("bos_token_id", "eos_token_id"), ids, strict=True))
    model = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{key: getattr(config, ours) for key, ours in SIZES.items()},
        "n_ctx": config.context,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": EPSILON,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,  # as trained here
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": DTYPE[dtype],
        **ids,
    }  # fmt: skip
    generation = {"_from_model_config": True, **{key: value for key, value in ids.items() if value is not None}}
    return {CONFIG: as_json(model), GENERATION: as_json(generation)}


def as_json(value):
    return (json.dumps(value, indent=2) + "\n").encode()

"""nanoGPT's ckpt.pt, and bare state dicts of GPT-2."""

import re
from functools import partial

import numpy as np

from .config import GPT2Config
from .errors import FormatError, InvalidArgument
from .lazy import Source, Stored
from .state_dict import arrange, entries, plain_names
from .torch_file import Tensor, load, stored

SIZES = {
    "n_layer": "layers", "n_head": "heads", "n_embd": "channels", "vocab_size": "vocab", "block_size": "context",
}  # fmt: skip
GELU_NOTE = (
    "the file doesn't say which GELU it was trained with: later versions of nanoGPT use the exact one, this engine uses "
    "GPT-2's tanh form, and the logits of a model trained with the other differ a little"
)
BIAS_NOTE = "the model has no biases: here they are zero, which computes the same, and training changes them"


def read_state_dict(path, heads=None):
    """The Source in a .pt, its weights not yet read: nanoGPT's checkpoint ({"model", "model_args", ...}) or a bare
    state dict, of nanoGPT or of Hugging Face's model, told apart by the layout of c_attn.

    heads: attention heads of a bare state dict, which doesn't tell. Raises FormatError for anything else, naming
    the global that a foreign pickle asks for; InvalidArgument where `heads` is needed, or contradicts the file.
    """
    found = load(path)
    arguments = found.get("model_args")
    tensors = found["model"] if isinstance(found.get("model"), dict) else found
    strange = [str(name) for name, value in tensors.items() if not isinstance(value, Tensor) or not isinstance(name, str)]
    if strange or not tensors:
        raise FormatError(f"{path}: {strange[0] if strange else 'an empty dict'}: expected a dict of tensors, or one as 'model'")
    plain = plain_names({name: stored(path, value) for name, value in tensors.items()}, path)
    config = told(path, arguments, heads) if arguments is not None else guessed(path, plain, heads)
    first = plain.get("h.0.attn.c_attn.weight")
    conv1d = first is not None and first[1].shape == (config.channels, 3 * config.channels)
    has_biases = arguments is not None and arguments.get("bias", True)
    zeros = {} if has_biases else absent_biases(plain, config)
    params, rows, dtype = arrange(plain | zeros, config, path, conv1d=conv1d)
    return Source("torch state dict" if arguments is None else "nanoGPT checkpoint", config, dtype, params,
                  [row for row in rows if row.name not in zeros],
                  [*([] if conv1d else [GELU_NOTE]), *([BIAS_NOTE] if zeros else [])])  # fmt: skip


def absent_biases(plain, config):
    """{name: (name, zeros)} of a model that has none, as nanoGPT's are by default; {} for one that has any."""
    if "ln_f.weight" not in plain or config.layers > len(plain):  # arrange says what is wrong with it
        return {}
    shapes = {name: shape for _, _, name, shape in entries(config) if name.endswith(".bias")}
    if any(name in plain for name in shapes):
        return {}
    dtype = plain["ln_f.weight"][1].dtype
    return {name: (name, Stored(shape, dtype, partial(np.zeros, shape, np.float32))) for name, shape in shapes.items()}


def told(path, arguments, heads):
    """The config in nanoGPT's model_args."""
    lacking = [name for name in SIZES if name not in arguments] if isinstance(arguments, dict) else ["a dict"]
    if lacking:
        raise FormatError(f"{path}: model_args lacks {', '.join(lacking)}")
    if heads not in (None, arguments["n_head"]):
        raise InvalidArgument(f"{heads} heads were given, {path} says {arguments['n_head']}")
    return checked(path, {ours: arguments[theirs] for theirs, ours in SIZES.items()})


def guessed(path, plain, heads):
    """The config that the shapes of a bare state dict tell, all but the heads."""
    layers = {int(found[1]) for found in map(re.compile(r"h\.(\d{1,9})\.").match, plain) if found}
    table, positions = plain.get("wte.weight", plain.get("lm_head.weight")), plain.get("wpe.weight")
    if not layers or any(found is None or len(found[1].shape) != 2 for found in (table, positions)):
        raise FormatError(f"{path}: not a state dict of a GPT-2: it lacks wte.weight, wpe.weight or h.0")
    if heads is None:
        raise InvalidArgument(f"{path}: a state dict doesn't tell the number of attention heads: expected --heads N")
    vocab, channels = table[1].shape
    return checked(path, {"layers": max(layers) + 1, "heads": heads, "channels": channels, "vocab": vocab,
                          "context": positions[1].shape[0]})  # fmt: skip


def checked(path, sizes):
    try:
        return GPT2Config(**sizes)
    except InvalidArgument as error:
        raise FormatError(f"{path}: {error}") from None

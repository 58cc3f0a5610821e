"""nanoGPT's ckpt.pt, and state dicts that torch.save wrote, read without torch and without running what they hold.

A .pt is a zip: a pickle, and a file of raw bytes for each storage. A pickle may call any function of the machine that
opens it, so this one finds only the handful that tensors are made of, and the tensors are read by NumPy.
"""

import collections
import math
import pickle
import re
import zipfile
from dataclasses import dataclass

import numpy as np

from .config import GPT2Config
from .errors import FormatError, InvalidArgument
from .lazy import Source, Stored
from .safetensors_file import LAYOUT, as_float32
from .state_dict import arrange, plain_names

DTYPE = {"FloatStorage": "fp32", "BFloat16Storage": "bf16", "HalfStorage": "fp16"}  # with weights
OTHERS = {  # beside them: counters of the optimizer, masks
    "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
    "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
SIZES = {
    "n_layer": "layers", "n_head": "heads", "n_embd": "channels", "vocab_size": "vocab", "block_size": "context",
}  # fmt: skip
OLD_PICKLE = b"\x80\x02\x8a\n"  # how torch before 1.6 began its files
GELU_NOTE = (
    "the file doesn't say which GELU it was trained with: nanoGPT has used the exact one since 2023, this engine uses "
    "GPT-2's tanh form, and the logits of a model trained with the other differ a little"
)


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
    params, rows, dtype = arrange(plain, config, path, conv1d=conv1d)
    return Source("torch state dict" if arguments is None else "nanoGPT checkpoint", config, dtype, params, rows,
                  [] if conv1d else [GELU_NOTE])  # fmt: skip


def told(path, arguments, heads):
    """The config in nanoGPT's model_args."""
    lacking = [name for name in SIZES if name not in arguments] if isinstance(arguments, dict) else ["a dict"]
    if lacking:
        raise FormatError(f"{path}: model_args lacks {', '.join(lacking)}")
    if not arguments.get("bias", True):
        raise FormatError(f"{path}: a model without biases (model_args: bias=False): this engine trains GPT-2 with them")
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


# -- the file


@dataclass(frozen=True)
class Storage:
    """The bytes `data/<key>` of the zip, `count` items of a dtype."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage; offset and strides in items."""

    storage: Storage
    offset: int
    shape: tuple
    strides: tuple


def load(path):
    """The dict in a .pt, with Tensor for each tensor. Raises FormatError."""
    with open(path, "rb") as file:
        if file.read(len(OLD_PICKLE)) == OLD_PICKLE:
            raise FormatError(f"{path}: written by a torch before 1.6: load and save it again with a newer one")
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                pickled = member(archive, "data.pkl")
                found = TensorsOnly(archive.open(pickled)).load()
                orders = [archive.read(name) for name in archive.namelist() if name.endswith("/byteorder")]
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
        except Exception as error:  # a damaged pickle raises whatever it happens to run into
            raise FormatError(f"{path}: not a whole .pt file of torch ({type(error).__name__}: {error})") from None
    if orders and orders[0] != b"little":
        raise FormatError(f"{path}: byte order {orders[0][:16]!r}, expected b'little'")
    if not isinstance(found, dict):
        raise FormatError(f"{path}: holds a {type(found).__name__}, expected a dict of tensors")
    return found


def member(archive, ending):
    """The name of the member <any folder>/<ending>."""
    for name in archive.namelist():
        if name.split("/", 1)[1:] == [ending]:
            return name
    raise FormatError(f"a zip without {ending}, expected one that torch.save wrote")


class TensorsOnly(pickle.Unpickler):
    """Finds what tensors and state dicts are made of, and refuses any other global by name."""

    def find_class(self, module, name):
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module == "torch" and name in DTYPE | OTHERS:
            return (DTYPE | OTHERS)[name]  # a word: nothing that could be called
        raise FormatError(f"the pickle asks for {module}.{name}, which no GPT-2 checkpoint needs; nothing was run")

    def persistent_load(self, identity):
        kind, dtype, key, _, count = identity
        if kind != "storage" or not all(isinstance(word, str) for word in (dtype, key)) or not isinstance(count, int):
            raise FormatError(f"a storage of kind {kind!r}")
        return Storage(key, dtype, count)


def rebuild_tensor(storage, offset, shape, strides, *_):
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def rebuild_parameter(tensor, *_):
    return tensor


ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
}


def stored(path, tensor):
    """The Stored of a Tensor. Raises FormatError for one that reaches beyond its storage."""
    storage = tensor.storage
    numbers = [*tensor.shape, *tensor.strides, tensor.offset]
    whole = all(isinstance(n, int) and n >= 0 for n in numbers) and len(tensor.shape) == len(tensor.strides)
    if not isinstance(storage, Storage) or not whole:
        raise FormatError(f"{path}: a tensor of shape {tensor.shape} with strides {tensor.strides}")
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    if math.prod(tensor.shape) and tensor.offset + reach >= storage.count:
        raise FormatError(f"{path}: a tensor of shape {tensor.shape} is larger than its storage of {storage.count} items")

    def read():
        with zipfile.ZipFile(path) as archive:
            try:
                name = member(archive, f"data/{storage.key}")
                size = storage.count * np.dtype(LAYOUT[storage.dtype]).itemsize
                if archive.getinfo(name).file_size != size:  # before a false one fills the memory
                    raise FormatError(f"has {archive.getinfo(name).file_size} bytes, expected {size}")
                values = np.frombuffer(archive.read(name), LAYOUT[storage.dtype])
            except (zipfile.BadZipFile, ValueError, FormatError) as error:
                raise FormatError(f"{path}: storage {storage.key}: {error}") from None
        steps = [stride * values.itemsize for stride in tensor.strides]
        view = np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, steps, writeable=False)
        return as_float32(np.ascontiguousarray(view).reshape(tensor.shape), storage.dtype)

    return Stored(tensor.shape, storage.dtype, read)

"""Files that torch.save wrote, read without torch and without running what they hold.

Such a file is a zip: a pickle, and the raw bytes of each storage. A pickle may call any function of the machine that
opens it, so this one finds only the handful that tensors are made of, and NumPy reads the tensors.
"""

import collections
import math
import pickle
import zipfile
import zlib
from dataclasses import dataclass

import numpy as np

from .errors import FormatError
from .lazy import Stored
from .safetensors_file import LAYOUT, as_float32

DTYPE = {"FloatStorage": "fp32", "BFloat16Storage": "bf16", "HalfStorage": "fp16"}  # with weights
OTHERS = {  # beside them: counters of the optimizer, masks
    "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
    "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
OLD_PICKLE = b"\x80\x02\x8a\n"  # how torch before 1.6 began its files


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
            except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError) as error:
                raise FormatError(f"{path}: storage {storage.key}: {error}") from None
        steps = [stride * values.itemsize for stride in tensor.strides]
        view = np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, steps, writeable=False)
        return as_float32(np.ascontiguousarray(view).reshape(tensor.shape), storage.dtype)

    return Stored(tensor.shape, storage.dtype, read)

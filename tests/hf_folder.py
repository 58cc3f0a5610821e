"""Hugging Face folders and .pt files made by hand, from the descriptions of the formats: no line of pyllmc's writers."""

import json
import pickle
import struct
import zipfile

import numpy as np

BLOCK = {
    "ln1w": "ln_1.weight", "ln1b": "ln_1.bias", "qkvw": "attn.c_attn.weight", "qkvb": "attn.c_attn.bias",
    "attprojw": "attn.c_proj.weight", "attprojb": "attn.c_proj.bias", "ln2w": "ln_2.weight", "ln2b": "ln_2.bias",
    "fcw": "mlp.c_fc.weight", "fcb": "mlp.c_fc.bias", "fcprojw": "mlp.c_proj.weight", "fcprojb": "mlp.c_proj.bias",
}  # fmt: skip
TOP = {"wte": "wte.weight", "wpe": "wpe.weight", "lnfw": "ln_f.weight", "lnfb": "ln_f.bias"}
TRANSPOSED = ("qkvw", "attprojw", "fcw", "fcprojw")


def random_params(config, seed=0):
    """The 16 tensors without structure: no matrix symmetric, no bias 0; padding rows zero."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in config.shapes().items()}
    params["wte"][config.vocab :] = 0
    return params


def truncated(array):
    """fp32 values that bf16 holds exactly."""
    return (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF0000).view(np.float32)


def state_dict(config, params, prefix="transformer.", conv1d=True):
    """{their name: float32 array}, without a head."""
    found = {}
    for ours, array in params.items():
        if ours in TOP:
            found[prefix + TOP[ours]] = array[: config.vocab] if ours == "wte" else array
        else:
            for layer in range(config.layers):
                turned = conv1d and ours in TRANSPOSED
                found[f"{prefix}h.{layer}.{BLOCK[ours]}"] = array[layer].T if turned else array[layer]
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def config_json(config, **changes):
    said = {
        "model_type": "gpt2", "n_layer": config.layers, "n_head": config.heads, "n_embd": config.channels,
        "vocab_size": config.vocab, "n_positions": config.context, "activation_function": "gelu_new",
    }  # fmt: skip
    return {key: value for key, value in (said | changes).items() if value != "absent"}


def encoded(array, code):
    if code == "BF16":
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(array).astype({"F32": "<f4", "F16": "<f2", "F64": "<f8", "U8": "u1"}[code]).tobytes()


def write_safetensors(path, tensors, code="F32", codes=()):
    """codes: {name: code} of those that differ."""
    header, data = {}, b""
    for name, array in tensors.items():
        own = dict(codes).get(name, code)
        raw = encoded(array, own)
        header[name] = {"dtype": own, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_folder(folder, config, tensors, code="F32", codes=(), shards=1, **changes):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(config, **changes)))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, code, codes)
        return folder
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for place in set(places.values()):
        held = {name: tensors[name] for name in tensors if places[name] == place}
        write_safetensors(folder / place, held, code, codes)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


class Global:
    """Pickles as a global of a module that this machine needn't have."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """Pickles as a call of a global."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


class Storage:
    def __init__(self, kind, key, count):
        self.identity = ("storage", Global("torch", kind), key, "cpu", count)


class TorchPickler(pickle._Pickler):  # the Python one, whose methods can be told what to write
    def persistent_id(self, value):
        return value.identity if isinstance(value, Storage) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Global):
            self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)


def write_pt(path, value):
    """A torch.save file of `value`, where NumPy arrays (float32; uint16 for bf16) become tensors."""
    blobs = []

    def converted(value):
        if isinstance(value, dict):
            return {key: converted(item) for key, item in value.items()}
        if not isinstance(value, np.ndarray):
            return value
        blobs.append(value.tobytes())
        kind = {"float32": "FloatStorage", "uint16": "BFloat16Storage", "int64": "LongStorage"}[value.dtype.name]
        strides = tuple(step // value.itemsize for step in np.empty(value.shape, value.dtype).strides)
        storage = Storage(kind, str(len(blobs) - 1), value.size)
        return Call(Global("torch._utils", "_rebuild_tensor_v2"), storage, 0, value.shape, strides, False, {})

    value = converted(value)
    with zipfile.ZipFile(path, "w") as archive, archive.open("archive/data.pkl", "w") as file:
        TorchPickler(file, 2).dump(value)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/byteorder", "little")
        for key, blob in enumerate(blobs):
            archive.writestr(f"archive/data/{key}", blob)
    return path

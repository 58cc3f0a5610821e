"""nanoGPT's .pt files, made by hand: what is read, and what is refused without being run."""

import datetime
import os
import pathlib
import pickle
import zipfile

import hf_folder
import numpy as np
import pytest

from pyllmc import GPT2Config
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.nanogpt import BIAS_NOTE, GELU_NOTE, read_state_dict

CONFIG = GPT2Config(layers=2, heads=4, channels=32, vocab=61, context=12)
PARAMS = hf_folder.random_params(CONFIG)
ARGUMENTS = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 12, "bias": True, "vocab_size": 61, "dropout": 0.0}


def nano(prefix="transformer.", head=True):
    """nanoGPT's state dict: linear layers are (out, in), the shared head is listed too."""
    found = hf_folder.state_dict(CONFIG, PARAMS, prefix, conv1d=False)
    return found | ({prefix.replace("transformer.", "lm_head.weight"): PARAMS["wte"][: CONFIG.vocab]} if head else {})


def same(source, params=PARAMS):
    assert source.config == CONFIG
    for name, array in params.items():
        rows = CONFIG.vocab if name == "wte" else None
        np.testing.assert_array_equal(source.params[name], array[:rows], err_msg=name)


@pytest.mark.parametrize("prefix", ["transformer.", "_orig_mod.transformer."])
def test_checkpoint(tmp_path, prefix):
    steps = {"state": {0: {"step": np.array(3), "exp_avg": np.ones(4, np.float32)}}, "param_groups": [{"lr": 0.1}]}
    saved = {"model": nano(prefix), "model_args": ARGUMENTS, "optimizer": steps, "iter_num": 3, "config": {"x": None}}
    source = read_state_dict(hf_folder.write_pt(tmp_path / "ckpt.pt", saved))
    same(source)
    assert (source.dtype, source.notes) == ("fp32", [GELU_NOTE])
    assert {row.name for row in source.rows} == set(nano(prefix))


def test_bare_state_dicts_of_both_layouts(tmp_path):
    for name, tensors in {"nano": nano(), "hf": hf_folder.state_dict(CONFIG, PARAMS)}.items():
        path = hf_folder.write_pt(tmp_path / name, tensors)
        same(read_state_dict(path, heads=4))
        with pytest.raises(InvalidArgument, match="expected --heads N"):
            read_state_dict(path)
        with pytest.raises(FormatError, match="divisible by heads"):
            read_state_dict(path, heads=5)


def test_bf16_keeps_its_bits(tmp_path):
    exact = {name: hf_folder.truncated(array) for name, array in PARAMS.items()}
    tensors = hf_folder.state_dict(CONFIG, exact, conv1d=False)
    bits = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in tensors.items()}
    source = read_state_dict(hf_folder.write_pt(tmp_path / "a.pt", bits), heads=4)
    assert source.dtype == "bf16"
    same(source, exact)


def without_biases(tensors):
    return {name: array for name, array in tensors.items() if not name.endswith(".bias")}


def test_a_model_without_biases_gets_zeros(tmp_path):
    """nanoGPT's default. Zeros compute what no biases do."""
    zeros = {name: np.zeros_like(array) if name.endswith("b") else array for name, array in PARAMS.items()}
    tensors = without_biases(nano())
    for saved, heads in (({"model": tensors, "model_args": ARGUMENTS | {"bias": False}}, None), (tensors, 4)):
        source = read_state_dict(hf_folder.write_pt(tmp_path / "a.pt", saved), heads)
        same(source, zeros)
        assert source.notes == [GELU_NOTE, BIAS_NOTE] and {row.name for row in source.rows} == set(tensors)
    bits = {name: (hf_folder.truncated(array).view(np.uint32) >> 16).astype(np.uint16) for name, array in tensors.items()}
    assert read_state_dict(hf_folder.write_pt(tmp_path / "b.pt", bits), heads=4).dtype == "bf16"


def refused(tmp_path, value, said, heads=None, error=FormatError):
    path = hf_folder.write_pt(tmp_path / "a.pt", value)
    with pytest.raises(error, match=said):
        read_state_dict(path, heads)


def test_models_that_do_not_fit(tmp_path):
    refused(tmp_path, {"model": without_biases(nano()), "model_args": ARGUMENTS}, "without biases")
    some = without_biases(nano()) | {"transformer.ln_f.bias": PARAMS["lnfb"]}
    refused(tmp_path, {"model": some, "model_args": ARGUMENTS | {"bias": False}}, "missing tensors: h.0.ln_1.bias|without biases")
    refused(tmp_path, {"model": nano(), "model_args": {"n_layer": 2}}, "lacks n_head")
    refused(tmp_path, {"model": nano(), "model_args": ARGUMENTS | {"n_layer": 3}}, "missing tensors: h.2.ln_1")
    refused(tmp_path, {"model": nano(), "model_args": ARGUMENTS | {"n_head": 0}}, "heads must be")
    refused(tmp_path, {"model": nano(), "model_args": ARGUMENTS}, "2 heads were given", 2, InvalidArgument)
    other = nano() | {"lm_head.weight": np.zeros((61, 32), np.float32)}
    refused(tmp_path, {"model": other, "model_args": ARGUMENTS}, "lm_head.weight differs")
    refused(tmp_path, {"epoch": 3}, "epoch: expected a dict of tensors")
    refused(tmp_path, [1, 2], "holds a list")
    refused(tmp_path, {"w": np.ones((3, 4), np.float32)}, "not a state dict of a GPT-2", 4)


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_pickle_that_calls_anything_else_is_refused_by_name(tmp_path):
    marker = tmp_path / "marker"
    refused(tmp_path, nano() | {"x": Evil(marker)}, "asks for (posix|nt).mkdir")
    assert not marker.exists()
    refused(tmp_path, nano() | {"x": datetime.date(2026, 1, 1)}, "asks for datetime.date")
    refused(tmp_path, nano() | {"x": pathlib.PurePosixPath("a")}, "asks for pathlib")
    for module, name in (("torch", "load"), ("builtins", "eval"), ("collections", "OrderedDict.fromkeys")):
        call = hf_folder.Call(hf_folder.Global(module, name), "1")
        refused(tmp_path, nano() | {"x": call}, f"asks for {module}.{name}")


def rebuild(count, offset, shape, strides):
    storage = hf_folder.Storage("FloatStorage", "0", count)
    return hf_folder.Call(hf_folder.Global("torch._utils", "_rebuild_tensor_v2"), storage, offset, shape, strides, False, {})


@pytest.mark.parametrize(
    "view", [(10, 0, (3, 4), (4, 1)), (12, 1, (3, 4), (4, 1)), (12, 0, (2, 2), (12, 1)), (12, 11, (2, 2), (-1, 1)),
             (12, 0, (3, 4), (4,)), (12, -1, (3, 4), (4, 1)), (12, 0, ("3", 4), (4, 1))],
)  # fmt: skip
def test_views_beyond_their_storage_are_refused(tmp_path, view):
    refused(tmp_path, {"pad": np.ones(12, np.float32), "wte.weight": rebuild(*view)}, "a tensor of shape", 4)


def test_strides_are_followed(tmp_path):
    tensors = nano(head=False)
    wpe = tensors.pop("transformer.wpe.weight")
    kept = {"transformer.wpe.weight": np.ascontiguousarray(wpe.T)} | tensors  # storage 0
    path = hf_folder.write_pt(tmp_path / "a.pt", kept)
    kept["transformer.wpe.weight"] = rebuild(wpe.size, 0, wpe.shape, (1, wpe.shape[0]))
    # the same storages in the same order, the first of them seen through swapped strides
    swapped = hf_folder.write_pt(tmp_path / "b.pt", {"first": np.ascontiguousarray(wpe.T), **kept})
    with zipfile.ZipFile(swapped) as archive:
        assert archive.read("archive/data/0") == wpe.T.tobytes()
    with pytest.raises(FormatError, match="no GPT-2 has: first"):
        read_state_dict(swapped, heads=4)
    with pytest.raises(FormatError, match="wpe.weight has shape|divisible|has shape"):
        read_state_dict(path, heads=4)
    nested = hf_folder.write_pt(tmp_path / "c.pt", {"optimizer": np.ascontiguousarray(wpe.T), "model": kept, "model_args": ARGUMENTS})
    same(read_state_dict(nested))


def test_damaged_files(tmp_path):
    path = hf_folder.write_pt(tmp_path / "a.pt", nano())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match="not a whole .pt file of torch"):
        read_state_dict(path, heads=4)
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9c" + bytes(50))
    with pytest.raises(FormatError, match="before 1.6"):
        read_state_dict(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.txt", "x")
    with pytest.raises(FormatError, match="a zip without data.pkl"):
        read_state_dict(path)
    for pickled in (b"", b"(lp0\n", pickle.dumps({})[:-1], b"\x80\x02}q\x00K\x01R."):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", pickled)
        with pytest.raises(FormatError, match="not a whole .pt file"):
            read_state_dict(path)
    hf_folder.write_pt(path, nano(head=False))
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, b"big" if name.endswith("byteorder") else content)
    with pytest.raises(FormatError, match="byte order"):
        read_state_dict(path, heads=4)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content + b"\0" * name.endswith("data/0"))
    with pytest.raises(FormatError, match="storage 0: has 7809 bytes, expected 7808"):
        list(read_state_dict(path, heads=4).params.values())

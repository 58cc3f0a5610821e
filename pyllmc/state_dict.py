"""GPT-2's tensors under the names that Hugging Face and nanoGPT give them, and ours.

They keep a tensor for each layer, we stack the layers. Hugging Face's linear weights are (in, out), because its
Conv1D multiplies from the left; nanoGPT's and ours are (out, in). A square one passes every check of shapes when
it is not transposed, so the layout is decided once for the whole model and never by a tensor's own shape.
"""

import re

import numpy as np

from .errors import FormatError
from .lazy import Lazy, Row

HEAD = "lm_head.weight"
TOP = {"wte": "wte.weight", "wpe": "wpe.weight", "lnfw": "ln_f.weight", "lnfb": "ln_f.bias"}
BLOCK = {  # after "h.<layer>."
    "ln1w": "ln_1.weight", "ln1b": "ln_1.bias",
    "qkvw": "attn.c_attn.weight", "qkvb": "attn.c_attn.bias",
    "attprojw": "attn.c_proj.weight", "attprojb": "attn.c_proj.bias",
    "ln2w": "ln_2.weight", "ln2b": "ln_2.bias",
    "fcw": "mlp.c_fc.weight", "fcb": "mlp.c_fc.bias",
    "fcprojw": "mlp.c_proj.weight", "fcprojb": "mlp.c_proj.bias",
}  # fmt: skip
LINEAR = ("qkvw", "attprojw", "fcw", "fcprojw")  # what Conv1D keeps transposed
WRAPPERS = ("_orig_mod.", "module.", "transformer.")  # of torch.compile, DistributedDataParallel, the LM classes
MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # buffers of older files: the causal mask and its -1e4
SHOWN = 8  # names in a message


def entries(config):
    """Yield (our name, layer or None, their name, shape (out, in) without padding) in the order of our tensors."""
    for ours, shape in config.shapes().items():
        if ours in TOP:
            yield ours, None, TOP[ours], (config.vocab, config.channels) if ours == "wte" else shape
        else:
            for layer in range(config.layers):
                yield ours, layer, f"h.{layer}.{BLOCK[ours]}", shape[1:]


def plain_names(tensors, path):
    """{name without wrappers: (name, tensor)}. Raises FormatError when two become one."""
    plain = {}
    for name, tensor in tensors.items():
        short = name
        while short.startswith(WRAPPERS):
            short = short[len(next(w for w in WRAPPERS if short.startswith(w))) :]
        if short in plain:
            raise FormatError(f"{path}: {plain[short][0]} and {name} are the same tensor of GPT-2, expected one")
        plain[short] = name, tensor
    return plain


def arrange(plain, config, path, *, conv1d, tied=True):
    """(params, rows, dtype) of Source from plain_names' tensors, each of them accounted for.

    conv1d: linear weights are (in, out). tied: an absent head is the token table; otherwise it must be there.
    Raises FormatError with the names that are missing, unknown, misshapen or of a foreign dtype, and for an output
    head with other weights than the token table, of which the engine keeps one.
    """
    if config.layers > len(plain):  # before a damaged number is counted up to
        raise FormatError(f"{path}: {config.layers} layers are said to be there, but only {len(plain)} tensors are")
    left = dict(plain)
    masks = [left.pop(name) for name in list(left) if MASKS.fullmatch(name)]
    head = left.get(HEAD)
    parts, rows, missing, faults = {}, [], [], []
    for ours, layer, theirs, shape in entries(config):
        turned = conv1d and ours in LINEAR
        found = left.pop(theirs, None)
        if found is None and ours == "wte" and head is not None:
            found = left.pop(HEAD)
        if found is None:
            missing.append(theirs)
            continue
        name, tensor = found
        check(faults, name, tensor, shape[::-1] if turned else shape)
        parts.setdefault(ours, []).append(tensor)
        where = ours if layer is None else f"{ours}[{layer}]"
        rows.append(Row(name, tensor.shape, tensor.dtype, where + (", transposed" if turned else "")))
    head = left.pop(HEAD, None)
    if head is not None:
        check(faults, *head, (config.vocab, config.channels))
    elif not tied and "wte.weight" in plain:
        faults.append("the output head is said to be untied from wte, but lm_head.weight is not there")
    complain(path, missing, [name for name, _ in left.values()], faults)
    if head is not None:
        check_tied(path, head, parts["wte"][0])
        rows.append(Row(head[0], head[1].shape, head[1].dtype, "wte, which has the same values"))
    rows += [Row(name, tensor.shape, tensor.dtype, "nowhere: a constant mask") for name, tensor in masks]
    used = {tensor.dtype for group in parts.values() for tensor in group}
    params = Lazy({ours: reader(parts[ours], ours, config, conv1d) for ours in config.shapes()})
    return params, rows, "bf16" if used == {"bf16"} else "fp32"


def check(faults, name, tensor, shape):
    if tensor.shape != tuple(shape):
        faults.append(f"{name} has shape {tensor.shape}, expected {tuple(shape)}")
    if tensor.dtype not in ("fp32", "bf16", "fp16"):
        faults.append(f"{name} is {tensor.dtype}, expected fp32, bf16 or fp16")


def complain(path, missing, unknown, faults):
    if missing and all(name.endswith(".bias") for name in missing) and not unknown and not faults:
        layer_biases = [name for name in missing if "c_attn" in name]
        if layer_biases:
            raise FormatError(
                f"{path}: a model without biases ({listed(missing)} missing): this engine trains GPT-2 with them"
            )
    said = [f"missing tensors: {listed(missing)}"] if missing else []
    said += [f"tensors that no GPT-2 has: {listed(unknown)}"] if unknown else []
    said += [listed(faults)] if faults else []
    if said:
        raise FormatError(f"{path}: {'; '.join(said)}")


def listed(names):
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def check_tied(path, head, wte):
    rows = np.any(head[1].read().view(np.uint32) != wte.read().view(np.uint32), axis=1).sum()
    if rows:
        raise FormatError(
            f"{path}: {head[0]} differs from the token table in {rows} of {wte.shape[0]} rows: an output head of its "
            "own can't be represented, GPT-2 shares one"
        )


def reader(group, ours, config, conv1d):
    """A function that gives one of our tensors: its layers stacked, (out, in)."""
    turned = conv1d and ours in LINEAR

    def read():
        if ours in TOP:
            return group[0].read()
        stacked = np.empty(config.shapes()[ours], np.float32)
        for layer, tensor in enumerate(group):
            stacked[layer] = tensor.read().T if turned else tensor.read()
        return stacked

    return read

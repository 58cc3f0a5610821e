"""Foreign, old, swapped, truncated and overlong files are refused with a sentence that helps."""

import os
from pathlib import Path

import numpy as np
import pytest

from pyllmc import formats
from pyllmc.config import GPT2Config
from pyllmc.errors import FormatError

CONFIG = GPT2Config(2, 2, 32, 257, 16)
MICRO = Path(__file__).parent / "golden" / "micro"
READERS = {
    "model checkpoint": (formats.peek_checkpoint, MICRO / "micro_fp32.bin"),
    "debug state": (lambda path: formats.read_debug_state(path, CONFIG), MICRO / "micro_debug_state.bin"),
    "token shard": (lambda path: formats.open_shard(path).close(), MICRO / "val_000000.bin"),
}


def altered(tmp_path, source, changes):
    """A copy of `source` with some header integers changed."""
    raw = bytearray(source.read_bytes())
    header = np.frombuffer(raw, "<i4", 256)
    for position, value in changes.items():
        header[position] = value
    path = tmp_path / "altered.bin"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("kind", READERS)
def test_the_unaltered_file_is_accepted(kind):
    reader, source = READERS[kind]
    reader(source)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("other", READERS)
def test_a_neighbouring_format_is_named(kind, other):
    if kind == other:
        return
    with pytest.raises(FormatError, match=f"expected a {kind}, but this is a {other}"):
        READERS[kind][0](READERS[other][1])


def test_an_optimizer_state_is_named_too(tmp_path):
    path = altered(tmp_path, MICRO / "micro_fp32.bin", {0: 20240527})
    with pytest.raises(FormatError, match="expected a model checkpoint, but this is an optimizer state"):
        READERS["model checkpoint"][0](path)


@pytest.mark.parametrize("kind", READERS)
def test_swapped_bytes_are_recognised(kind, tmp_path):
    reader, source = READERS[kind]
    swapped = tmp_path / "swapped.bin"
    swapped.write_bytes(np.fromfile(source, "<i4", 256).byteswap().tobytes())
    with pytest.raises(FormatError, match=f"a {kind} with swapped bytes"):
        reader(swapped)


@pytest.mark.parametrize("version", [1, 2, 4, 6, -1])
def test_checkpoint_versions_say_found_supported_and_remedy(version, tmp_path):
    path = altered(tmp_path, MICRO / "micro_fp32.bin", {1: version})
    with pytest.raises(
        FormatError, match=rf"version {version} .*reads version 3 and 5: export the model again"
    ):
        formats.peek_checkpoint(path)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("size", [0, 3, 4, 1023])
def test_a_file_shorter_than_its_header(kind, size, tmp_path):
    reader, source = READERS[kind]
    path = tmp_path / "short.bin"
    path.write_bytes(source.read_bytes()[:size])
    with pytest.raises(FormatError, match=f"{size} bytes, too short"):
        reader(path)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("change", "word"), [(-1, "truncated"), (-2, "truncated"), (2, "do not belong")])
def test_size_is_exact(kind, change, word, tmp_path):
    reader, source = READERS[kind]
    raw = source.read_bytes()
    path = tmp_path / "resized.bin"
    path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    with pytest.raises(FormatError, match=rf"{word}.*{len(raw) + change} bytes, expected {len(raw)}"):
        reader(path)


def test_other_files_show_how_they_start(tmp_path):
    path = tmp_path / "model.zip"
    path.write_bytes(b"PK\x03\x04" + bytes(2000))
    with pytest.raises(FormatError, match=r"not a model checkpoint: it starts with b'PK.*pyllmc.convert makes one from"):
        formats.peek_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({2: 0}, "context must be an integer from 1"),
        ({3: -5}, "vocab must be"),
        ({4: 0}, "layers must be"),
        ({5: 3}, r"channels \(32\) must be divisible by heads \(3\)"),
        ({6: -32}, "channels must be"),
        ({7: 257}, r"padded vocabulary \(header\[7\]\) is 257, expected 384"),
        ({7: 512}, "expected 384"),
        ({4: 2**31 - 1, 6: 2**31 - 2}, "truncated"),  # sizes far past 64 bits
    ],
)
def test_every_checkpoint_field_is_checked(changes, text, tmp_path):
    path = altered(tmp_path, MICRO / "micro_fp32.bin", changes)
    with pytest.raises(FormatError, match=text) as caught:
        formats.peek_checkpoint(path)
    assert os.fspath(path) in str(caught.value)


@pytest.mark.parametrize("changes", [{2: 0}, {2: -1}, {3: 0}, {3: 17}])
def test_debug_state_fields(changes, tmp_path):
    with pytest.raises(FormatError, match="debug state has B="):
        formats.read_debug_state(altered(tmp_path, MICRO / "micro_debug_state.bin", changes), CONFIG)


def test_debug_state_of_another_model():
    with pytest.raises(FormatError, match="truncated"):
        formats.read_debug_state(MICRO / "micro_debug_state.bin", GPT2Config(3, 2, 32, 257, 16))


def test_debug_state_content():
    state = formats.read_debug_state(MICRO / "micro_debug_state.bin", CONFIG)
    assert state.inputs.shape == state.targets.shape == (2, 16)
    # the loss follows from the logits: both are read from the right place
    shifted = state.logits.astype(np.float64)
    log_sum = np.log(np.exp(shifted).sum(-1))
    picked = np.take_along_axis(shifted, state.targets[..., None], -1)[..., 0]
    assert abs((log_sum - picked).mean() - state.loss) < 1e-5
    assert not state.grads["wte"][257:].any() and state.grads["lnfb"].any()

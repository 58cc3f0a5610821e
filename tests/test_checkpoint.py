"""Model checkpoints, and bf16 against a rounding done with integers."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllmc import bf16
from pyllmc.config import GPT2Config, descriptors
from pyllmc.errors import InvalidArgument
from pyllmc.formats import iter_checkpoint, peek_checkpoint, read_checkpoint, write_checkpoint

CONFIG = GPT2Config(2, 2, 32, 257, 16)
MICRO = Path(__file__).parent / "golden" / "micro"


@pytest.mark.parametrize(("name", "dtype"), [("micro_fp32.bin", "fp32"), ("micro_bf16.bin", "bf16")])
def test_reference_file_survives_a_round_trip_byte_for_byte(name, dtype, tmp_path):
    checkpoint = read_checkpoint(MICRO / name)
    assert (checkpoint.config, checkpoint.dtype) == (CONFIG, dtype)
    write_checkpoint(tmp_path / "copy.bin", checkpoint.config, checkpoint.params, checkpoint.dtype)
    assert (tmp_path / "copy.bin").read_bytes() == (MICRO / name).read_bytes()


def test_bf16_file_is_the_rounded_fp32_file(tmp_path):
    write_checkpoint(tmp_path / "b.bin", CONFIG, read_checkpoint(MICRO / "micro_fp32.bin").params, "bf16")
    assert (tmp_path / "b.bin").read_bytes() == (MICRO / "micro_bf16.bin").read_bytes()


def test_larger_reference_files(golden, tmp_path):
    for name in ("mid_fp32.bin", "tiny_bf16.bin", "tiny_fp32.bin"):
        checkpoint = read_checkpoint(golden / name)
        write_checkpoint(tmp_path / name, checkpoint.config, checkpoint.params, checkpoint.dtype)
        assert (tmp_path / name).read_bytes() == (golden / name).read_bytes()


def test_iteration_gives_the_tensors_in_file_order():
    assert [(name, a.shape) for name, a in iter_checkpoint(MICRO / "micro_bf16.bin")] == list(
        CONFIG.shapes().items()
    )


def test_unpadded_wte_gets_zero_rows(tmp_path):
    params = read_checkpoint(MICRO / "micro_fp32.bin").params
    write_checkpoint(tmp_path / "a.bin", CONFIG, params | {"wte": params["wte"][:257]})
    assert (tmp_path / "a.bin").read_bytes() == (MICRO / "micro_fp32.bin").read_bytes()


def test_vocabulary_that_needs_no_padding(tmp_path):
    config = GPT2Config(1, 1, 2, 512, 4)
    params = {name: np.ones(shape, np.float32) for name, shape in config.shapes().items()}
    write_checkpoint(tmp_path / "a.bin", config, params)
    assert read_checkpoint(tmp_path / "a.bin").params["wte"].shape == (512, 2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"wpe": np.zeros((15, 32), np.float32)}, r"wpe has shape \(15, 32\), expected \(16, 32\)"),
        ({"wte": np.zeros((256, 32), np.float32)}, "wte has shape"),
        ({"lnfb": np.zeros(32)}, "lnfb is float64"),
        ({"fcb": None}, "fcb"),
    ],
)
def test_bad_tensors_leave_the_old_file_alone(change, text, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"precious")
    with pytest.raises(InvalidArgument, match=text):
        write_checkpoint(path, CONFIG, read_checkpoint(MICRO / "micro_fp32.bin").params | change)
    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["model.bin"]


def test_missing_tensor_and_unknown_dtype(tmp_path):
    with pytest.raises(InvalidArgument, match="needs the tensor wte, which is missing"):
        write_checkpoint(tmp_path / "a.bin", CONFIG, {})
    with pytest.raises(InvalidArgument, match="did you mean 'bf16'"):
        write_checkpoint(tmp_path / "a.bin", CONFIG, {}, "bf15")
    assert not list(tmp_path.iterdir())


def nearest_bf16(bits):
    """Oracle: the two bf16 neighbours of a finite float32, compared as exact fractions."""
    low = bits >> 16
    high = low + 1

    def exact(b):
        exponent, fraction = (b >> 7) & 0xFF, b & 0x7F
        # one exponent above the largest stands for the value where infinity begins
        size = Fraction(fraction, 128) + (exponent > 0)
        return size * Fraction(2) ** (max(exponent, 1) - 127)

    wanted = Fraction(abs(float(np.uint32(bits & 0x7FFFFFFF).view(np.float32))))
    below, above = wanted - exact(low & 0x7FFF), exact(high & 0x7FFF) - wanted
    return low if below < above or (below == above and low % 2 == 0) else high


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1).filter(lambda b: b & 0x7F800000 != 0x7F800000))
def test_narrowing_rounds_to_nearest_even(bits):
    assert bf16.narrow(np.array([bits], np.uint32).view(np.float32))[0] == nearest_bf16(bits)


@pytest.mark.parametrize("bits", [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x007FFFFF, 0x80000001])
def test_narrowing_at_ties_and_ends(bits):
    assert bf16.narrow(np.array([bits], np.uint32).view(np.float32))[0] == nearest_bf16(bits)


def test_nan_stays_nan_and_infinity_infinity():
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32)
    back = bf16.widen(bf16.narrow(bits.view(np.float32)))
    assert np.isnan(back[:4]).all()
    assert back[4:].tolist() == [np.inf, -np.inf]


def test_widening_is_exact_for_all_values():
    bits = np.arange(65536, dtype=np.uint16)
    wide = bf16.widen(bits)
    numbers = ~np.isnan(wide)
    np.testing.assert_array_equal(bf16.narrow(wide)[numbers], bits[numbers])


def test_config_refuses_what_cannot_be():
    for bad in ({"layers": 0}, {"heads": 5}, {"channels": -1}, {"vocab": 2.5}, {"context": True}):
        with pytest.raises(InvalidArgument, match=next(iter(bad))):
            GPT2Config(**({"layers": 1, "heads": 2, "channels": 4, "vocab": 7, "context": 8} | bad))


def test_parameter_counts():
    # published sizes of GPT-2, plus 47 padding rows
    for name, count, channels in (("d12", 124439808, 768), ("d48", 1557611200, 1600)):
        assert GPT2Config.from_descriptor(name).num_params == count + 47 * channels
    assert peek_checkpoint(MICRO / "micro_fp32.bin")[0].num_params * 4 + 1024 == 154112


def test_descriptors():
    assert GPT2Config.from_descriptor("gpt2:d12") == GPT2Config.from_descriptor("d12")
    assert GPT2Config.from_descriptor("gpt3:c2560") == GPT2Config(32, 32, 2560, 50257, 2048)
    assert all(GPT2Config.from_descriptor(name).vocab == 50257 for name in descriptors())
    with pytest.raises(InvalidArgument, match="5140 channels do not divide into heads of 128"):
        GPT2Config.from_descriptor("gpt3:c5140")
    for wrong, close in {"d13": "d12", "gpt2:d50": "d48", "gpt3:c800": "gpt3:c768", "gpt3:c9": "gpt3:c384", "D12": "d12"}.items():
        with pytest.raises(InvalidArgument, match=rf"did you mean '{close}'.*d12"):
            GPT2Config.from_descriptor(wrong)

"""Peaks and utilisation: the right part, the right arithmetic, and nothing rather than a guess (CLI-13)."""

import math

import pytest

from pyllmc.config import GPT2Config
from pyllmc.flops import utilisation, utilisation_meter
from pyllmc.peaks import PARTS, arithmetic, peak_of


def device(name, multiprocessors):
    return {"name": name, "multiprocessors": multiprocessors}


@pytest.mark.parametrize(
    "name, multiprocessors, title, bf16",
    [("NVIDIA H200", 132, "H200", 989), ("NVIDIA H200 NVL", 132, "H200 NVL", 835), ("NVIDIA GH200 480GB", 132, "GH200", 989),
     ("NVIDIA H100 80GB HBM3", 132, "H100 SXM", 989), ("NVIDIA H100 PCIe", 114, "H100 PCIe", 756),
     ("NVIDIA H100 NVL", 132, "H100 NVL", 835), ("NVIDIA B200", 148, "B200", 2250),
     ("NVIDIA A100-SXM4-80GB", 108, "A100", 312), ("NVIDIA A100-PCIE-40GB", 108, "A100", 312),
     ("NVIDIA A100 80GB PCIe", 108, "A100", 312), ("NVIDIA A10", 72, "A10", 125), ("NVIDIA A10G", 80, "A10G", 70),
     ("NVIDIA A40", 84, "A40", 149.7), ("NVIDIA RTX A6000", 84, "RTX A6000", 154.8), ("NVIDIA L4", 58, "L4", 121),
     ("NVIDIA L40S", 142, "L40S", 362), ("NVIDIA GeForce RTX 3090", 82, "RTX 3090", 71),
     ("NVIDIA GeForce RTX 4090", 128, "RTX 4090", 165.2), ("NVIDIA GeForce RTX 5090", 170, "RTX 5090", 209.5)],
)  # fmt: skip
def test_known_parts(name, multiprocessors, title, bf16):
    peak = peak_of(device(name, multiprocessors), "bf16")
    assert (peak.tflops, peak.label) == (bf16, f"dense bf16, {title}")
    slower = [peak_of(device(name, multiprocessors), precision).tflops for precision in ("tf32", "fp32")]
    assert bf16 > slower[0] >= slower[1] > 0


@pytest.mark.parametrize(
    "name, multiprocessors, part",
    [("FooBar 9000", 132, "FooBar 9000 is not in the table"), ("NVIDIA H200 MIG 1g.18gb", 16, "slice"),
     ("NVIDIA H200", 16, "16 of its 132 multiprocessors"), ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, "slice"),
     ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, "not in the table"), ("NVIDIA H2000", 132, "not in the table"),
     ("", 0, "not in the table"), ("NVIDIA", 1, "not in the table")],
)  # fmt: skip
def test_no_peak_rather_than_a_guess(name, multiprocessors, part):
    peak = peak_of(device(name, multiprocessors), "bf16")
    assert peak.tflops is None and part in peak.label


def test_the_precision_decides():
    h200 = device("NVIDIA H200", 132)
    assert arithmetic("bf16", 1) == "bf16" and arithmetic("fp32", 0) == "fp32" and arithmetic("fp32", 1) == "tf32"
    assert [peak_of(h200, kind).tflops for kind in ("bf16", "tf32", "fp32")] == [989, 494, 67]
    assert peak_of(h200, "tf32").label == "dense TF32, H200"
    old = peak_of(device("Tesla V100-SXM2-16GB", 80), "bf16")
    assert old.tflops is None and old.label == "V100 SXM has no dense bf16"
    assert peak_of(device("Tesla V100-SXM2-16GB", 80), "fp32").tflops == 15.7


def test_a_given_peak_holds_anywhere():
    for name in ("FooBar 9000", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200"):
        peak = peak_of(device(name, 16), "fp32", 42)
        assert (peak.tflops, peak.label) == (42.0, "fp32, as given")


def test_every_row_is_found_by_one_pattern_only():
    assert len({part.title for part in PARTS}) == len(PARTS)
    for part in PARTS:
        for name in (f"NVIDIA {part.title}", f"NVIDIA GeForce {part.title}"):
            found = peak_of(device(name, part.multiprocessors), "fp32")
            assert found.tflops is None or found.label == f"fp32, {part.title}"


def test_utilisation_is_a_share_or_nothing():
    d12 = GPT2Config.from_descriptor("d12")
    # 594k tok/s on an H200 is 48% (measured with the reference trainer)
    assert utilisation(d12, 1024, 594e3, 989) == pytest.approx(0.48, abs=0.005)
    for speed, peak in ((math.nan, 989), (math.inf, 989), (1e5, None)):
        assert utilisation(d12, 1024, speed, peak) is None
    assert utilisation_meter(d12, 1024, 989)(594e3) == utilisation(d12, 1024, 594e3, 989)

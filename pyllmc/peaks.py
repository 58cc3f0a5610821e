"""What GPUs can do at best, by the makers' data sheets: the yardstick of utilisation.

Dense products (without the doubling that 2:4 sparsity promises) with fp32 sums, at boost clock. A part is
recognised by its whole name, never by a piece of it: a laptop's RTX 4090 is not a desktop's, an A10G is no
A10. What is not in the table has no peak rather than a guessed one.
"""

import re
from dataclasses import dataclass

WHOLE_PART = 0.9  # of the listed multiprocessors: makers ship a few more or less under one name; a slice has far less


@dataclass(frozen=True)
class Peak:
    """tflops: TFLOP/s, None if unknown. label: of which arithmetic on which part, or why there is none."""

    tflops: float | None
    label: str


@dataclass(frozen=True)
class Part:
    """One row: title for people, `name` as a pattern of the device's whole name without "NVIDIA", full number of
    multiprocessors, and TFLOP/s in bf16, TF32 and fp32; None where there is no such arithmetic."""

    title: str
    name: str
    multiprocessors: int
    bf16: float | None
    tf32: float | None
    fp32: float


SIZE = r"(?: \d+GB)?"
PARTS = (
    Part("B200", r"B200.*", 148, 2250, 1125, 75),
    Part("GB200", r"GB200.*", 148, 2500, 1250, 80),
    Part("GH200", r"GH200.*", 132, 989, 494, 67),
    Part("H200 NVL", r"H200 NVL", 132, 835, 418, 60),
    Part("H200", r"H200( SXM.*)?", 132, 989, 494, 67),
    Part("H100 NVL", r"H100 NVL", 132, 835, 418, 60),
    Part("H100 PCIe", r"H100 PCIe", 114, 756, 378, 51),
    Part("H100 SXM", rf"H100(?: SXM5?)?{SIZE}(?: HBM[23]e?)?", 132, 989, 494, 67),
    Part("H800 PCIe", r"H800 PCIe", 114, 756, 378, 51),
    Part("H800 SXM", rf"H800(?: SXM5?)?{SIZE}(?: HBM3)?", 132, 989, 494, 67),
    Part("H20", r"H20", 78, 148, 74, 44),
    Part("A100", r"A100(?:X|[- ].*)?", 108, 312, 156, 19.5),
    Part("A800", r"A800(?:[- ].*)?", 108, 312, 156, 19.5),
    Part("A30", r"A30", 56, 165, 82, 10.3),
    Part("A10", r"A10", 72, 125, 62.5, 31.2),
    Part("A10G", r"A10G", 80, 70, 35, 35),
    Part("A40", r"A40", 84, 149.7, 74.8, 37.4),
    Part("L4", r"L4", 58, 121, 60, 30.3),
    Part("L40", r"L40", 142, 181, 90.5, 90.5),
    Part("L40S", r"L40S", 142, 362, 183, 91.6),
    Part("RTX A4000", r"RTX A4000", 48, 76.7, 38.3, 19.2),
    Part("RTX A5000", r"RTX A5000", 64, 111.1, 55.6, 27.8),
    Part("RTX A6000", r"RTX A6000", 84, 154.8, 77.4, 38.7),
    Part("RTX 6000 Ada", r"RTX 6000 Ada Generation", 142, 364.2, 182.1, 91.1),
    # GeForce: half rate where the sums are fp32, which is what training needs
    Part("RTX 3090", r"RTX 3090", 82, 71, 35.6, 35.6),
    Part("RTX 3090 Ti", r"RTX 3090 Ti", 84, 80, 40, 40),
    Part("RTX 4080", r"RTX 4080", 76, 97.5, 48.7, 48.7),
    Part("RTX 4080 SUPER", r"RTX 4080 SUPER", 80, 104.4, 52.2, 52.2),
    Part("RTX 4090", r"RTX 4090", 128, 165.2, 82.6, 82.6),
    Part("RTX 4090 D", r"RTX 4090 D", 114, 147, 73.5, 73.5),
    Part("RTX 5080", r"RTX 5080", 84, 112.6, 56.3, 56.3),
    Part("RTX 5090", r"RTX 5090", 170, 209.5, 104.8, 104.8),
    Part("T4", r"T4", 40, None, None, 8.1),
    Part("V100 PCIe", r"V100S?-PCIE.*", 80, None, None, 14),
    Part("V100 SXM", r"V100-SXM.*", 80, None, None, 15.7),
)
LABELS = {"bf16": "dense bf16", "tf32": "dense TF32", "fp32": "fp32"}


def peak_of(device, precision, given=None):
    """The Peak of a device for "bf16", "tf32" or "fp32" arithmetic.

    device: the fields of llmc_device, of which the name and the number of multiprocessors count. given:
    TFLOP/s that somebody states; they hold on any device.
    """
    label = LABELS[precision]
    if given is not None:
        return Peak(float(given), f"{label}, as given")
    name = re.sub(r"^(NVIDIA|Tesla|GeForce|Quadro|\s)+", "", device["name"]).strip()
    if re.search(r"\bMIG\b", name):
        return Peak(None, f"{device['name']} is a slice of a GPU")
    found = next((part for part in PARTS if re.fullmatch(part.name, name, re.IGNORECASE)), None)
    if found is None:
        return Peak(None, f"{device['name']} is not in the table, --peak-tflops states it")
    if device["multiprocessors"] < WHOLE_PART * found.multiprocessors:
        return Peak(
            None,
            f"{device['name']} shows {device['multiprocessors']} of its {found.multiprocessors} multiprocessors",
        )
    tflops = getattr(found, precision)
    return Peak(tflops, f"{label}, {found.title}" if tflops else f"{found.title} has no {label}")


def arithmetic(precision, tf32):
    """"bf16", "tf32" or "fp32": what the matrix products of a model run in. precision: "fp32" or "bf16"."""
    return "tf32" if precision == "fp32" and tf32 else precision

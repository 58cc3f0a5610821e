"""What a device can do at best, measured: the rate of a copy, and of a large matrix product.

Measured once for a device, its driver and the libraries, and kept in the cache folder. The product's factors
are random: a GPU at its power limit multiplies zeros faster than numbers.
"""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .. import bf16
from ..atomic import atomic_write
from ..cache import cache_folder, make_folder
from ..errors import OutOfMemory
from .cuda_driver import Device

FILE = "ceilings.json"
VERSION = 1
GPU_COPY_BYTES, LEAST_COPY_BYTES = 1 << 30, 1 << 26
GPU_SIDE, CPU_SIDE = 8192, 2048  # of the square factors
CPU_COPY_BYTES = 1 << 28  # far above what caches hold
WARM_S, MEASURE_S = 0.5, 1.0  # long enough for clocks and power to settle
LEAST_REPEATS = 5


def measure(library, ordinal, threads, arithmetic):
    """{"copy_tb_s", "product_tflops", ...} of the device of an engine; nothing is kept.

    copy_tb_s counts bytes read and bytes written. product_tflops: 2 n^3 operations each, in "bf16", "tf32" or
    "fp32". Both are medians of several, on a CPU the best ones; "..._range" holds the extremes, `how` what was run.
    """
    return _measure_cpu(threads) if library.backend == "cpu" else _measure_gpu(ordinal, arithmetic)


def key_of(device, driver, build_info, arithmetic):
    """What has to be the same for kept ceilings to hold. device: the fields of llmc_device."""
    return {
        "device": device["uuid"] or device["name"], "multiprocessors": device["multiprocessors"], "driver": driver,
        "libraries": build_info, "arithmetic": arithmetic,
    }  # fmt: skip


def kept(key):
    """The ceilings measured before under this key, or None."""
    return next((entry["ceilings"] for entry in _entries() if entry["key"] == key), None)


def keep(key, ceilings):
    """Keep ceilings for later runs; those kept before under this key go."""
    make_folder(cache_folder(), "measured ceilings")
    entries = [entry for entry in _entries() if entry["key"] != key] + [{"key": key, "ceilings": ceilings}]
    with atomic_write(cache_folder() / FILE) as file:
        file.write(json.dumps({"version": VERSION, "entries": entries}, indent=1).encode())


def _entries():
    """What is in the cache; a file that can't be read or is of another version has nothing."""
    try:
        data = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            return []
        return [
            entry for entry in data["entries"]
            if isinstance(entry["key"], dict) and entry["ceilings"]["copy_tb_s"] > 0 and entry["ceilings"]["product_tflops"] > 0
        ]  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _measure_gpu(ordinal, arithmetic):
    with Device(ordinal) as device:
        count = GPU_COPY_BYTES
        while True:
            try:
                both = device.allocate(2 * count)
                break
            except OutOfMemory:
                count //= 2
                if count < LEAST_COPY_BYTES:
                    raise
        copies = _repeated(lambda: device.timed(lambda: device.copy_half(both, count)))
        rng = np.random.default_rng(0)
        factors = []
        for _ in range(2):
            values = rng.standard_normal((GPU_SIDE, GPU_SIDE), np.float32)
            factors.append(device.upload(bf16.narrow(values) if arithmetic == "bf16" else values))
        out = device.allocate(GPU_SIDE * GPU_SIDE * (2 if arithmetic == "bf16" else 4))
        products = _repeated(lambda: device.timed(lambda: device.product(out, *factors, GPU_SIDE, arithmetic)))
    how = f"copy of {count >> 20} MiB within the device; cuBLAS product {GPU_SIDE}^3 of random {arithmetic}"
    return _rates(copies, count, products, GPU_SIDE, how, statistics.median)


def _measure_cpu(threads):
    source = np.ones(CPU_COPY_BYTES // 4, np.float32)
    destination = np.zeros_like(source)
    with ThreadPoolExecutor(threads) as pool:
        pieces = list(zip(np.array_split(destination, threads), np.array_split(source, threads), strict=True))
        copies = _repeated(lambda: _clocked(lambda: list(pool.map(lambda pair: np.copyto(*pair), pieces))))
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, CPU_SIDE, CPU_SIDE), np.float32)
    out = np.empty_like(left)
    products = _repeated(lambda: _clocked(lambda: np.matmul(left, right, out)))
    how = f"NumPy copy of {CPU_COPY_BYTES >> 20} MiB in {threads} threads; NumPy product {CPU_SIDE}^3 of random fp32"
    # cores that others use too are slowed down by them, never sped up
    return _rates(copies, CPU_COPY_BYTES, products, CPU_SIDE, how, max)


def _repeated(run):
    """Milliseconds of several runs, after some that warm up."""
    end = time.perf_counter() + WARM_S
    run()
    while time.perf_counter() < end:
        run()
    found, end = [], time.perf_counter() + MEASURE_S
    while len(found) < LEAST_REPEATS or time.perf_counter() < end:
        found.append(run())
    return found


def _clocked(work):
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def _rates(copies, count, products, side, how, typical):
    """The dict of measure() from milliseconds of copies of `count` bytes and of products of side^3. typical: takes
    the figure from several rates."""
    found = {"how": how}
    for name, ms, amount in (("copy_tb_s", copies, 2 * count), ("product_tflops", products, 2 * side**3)):
        rates = [amount / (value / 1e3) / 1e12 for value in ms]
        found[name] = typical(rates)
        found[f"{name}_range"] = [min(rates), max(rates)]
    return found

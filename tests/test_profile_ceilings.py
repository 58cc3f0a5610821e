"""Ceilings: the arithmetic of rates, what is kept for whom, and machines without a driver."""

import ctypes

import pytest

from pyllmc.errors import DeviceError, OutOfMemory, Unavailable
from pyllmc.profile import ceilings
from pyllmc.profile.cuda_driver import Device

DEVICE = {"uuid": "GPU-1", "name": "H200", "multiprocessors": 132}
KEY = ceilings.key_of(DEVICE, "580", "cuBLAS 13", "bf16")
BEST = {"copy_tb_s": 4.2, "product_tflops": 680.0, "how": "made up"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / ceilings.FILE


def test_kept_for_the_same_device_driver_libraries_and_arithmetic_only():
    assert ceilings.kept(KEY) is None
    ceilings.keep(KEY, BEST)
    assert ceilings.kept(KEY) == BEST
    others = [
        ceilings.key_of({**DEVICE, "uuid": "GPU-2"}, "580", "cuBLAS 13", "bf16"), ceilings.key_of(DEVICE, "590", "cuBLAS 13", "bf16"),
        ceilings.key_of(DEVICE, "580", "cuBLAS 12", "bf16"), ceilings.key_of(DEVICE, "580", "cuBLAS 13", "tf32"),
    ]  # fmt: skip
    assert [ceilings.kept(key) for key in others] == [None] * 4
    ceilings.keep(others[0], {**BEST, "copy_tb_s": 1.0})
    ceilings.keep(KEY, {**BEST, "copy_tb_s": 5.0})
    assert ceilings.kept(KEY)["copy_tb_s"] == 5.0 and ceilings.kept(others[0])["copy_tb_s"] == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 9, "entries": []}', '{"version": 1, "entries": [{"key": {}}]}',
     '{"version": 1, "entries": [{"key": {}, "ceilings": {"copy_tb_s": null, "product_tflops": 1}}]}'],
)  # fmt: skip
def test_a_damaged_cache_has_nothing_and_is_replaced(cache, text):
    cache.parent.mkdir()
    cache.write_text(text)
    assert ceilings.kept(KEY) is None
    ceilings.keep(KEY, BEST)
    assert ceilings.kept(KEY) == BEST


def test_rates():
    found = ceilings._rates([1.0, 2.0, 4.0], 10**9, [10.0, 20.0, 40.0], 1000, "how", max)
    assert found["copy_tb_s"] == pytest.approx(2.0) and found["copy_tb_s_range"] == pytest.approx([0.5, 2.0])
    assert found["product_tflops"] == pytest.approx(0.2) and found["product_tflops_range"] == pytest.approx([0.05, 0.2])


def test_a_cpu_is_measured(monkeypatch):
    monkeypatch.setattr(ceilings, "WARM_S", 0)
    monkeypatch.setattr(ceilings, "MEASURE_S", 0)
    monkeypatch.setattr(ceilings, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "CPU_SIDE", 64)
    found = ceilings._measure_cpu(2)
    for name in ("copy_tb_s", "product_tflops"):
        low, high = found[f"{name}_range"]
        assert 0 < low <= found[name] <= high
    assert "1 MiB in 2 threads" in found["how"] and "64^3" in found["how"]


class FakeDevice:
    """A device with room for so many bytes, on which everything takes a millisecond."""

    def __init__(self, room):
        self.room, self.products = room, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def allocate(self, count):
        if count > self.room:
            raise OutOfMemory("cuMemAlloc_v2: out of memory")
        self.room -= count
        return object()

    def upload(self, array):
        self.uploaded = array
        return self.allocate(array.nbytes)

    def copy_half(self, memory, count):
        self.copied = count

    def product(self, out, left, right, n, arithmetic):
        self.products.append((n, arithmetic))

    def timed(self, enqueue):
        enqueue()
        return 1.0


@pytest.mark.parametrize("arithmetic, width", [("bf16", 2), ("tf32", 4)])
def test_a_gpu_is_measured_with_what_memory_it_has(monkeypatch, arithmetic, width):
    monkeypatch.setattr(ceilings, "WARM_S", 0)
    monkeypatch.setattr(ceilings, "MEASURE_S", 0)
    monkeypatch.setattr(ceilings, "GPU_SIDE", 128)
    device = FakeDevice((1 << 29) + (1 << 28))
    monkeypatch.setattr(ceilings, "Device", lambda ordinal: device)
    found = ceilings._measure_gpu(0, arithmetic)
    assert "256 MiB" in found["how"] and device.copied == 1 << 28 and found["copy_tb_s"] == pytest.approx(2 * (1 << 28) / 1e-3 / 1e12)
    assert set(device.products) == {(128, arithmetic)} and device.uploaded.itemsize == width and device.uploaded.std() > 0
    monkeypatch.setattr(ceilings, "Device", lambda ordinal: FakeDevice(1 << 20))
    with pytest.raises(OutOfMemory):
        ceilings._measure_gpu(0, arithmetic)


def test_no_driver_is_one_sentence(monkeypatch):
    def absent(name, *_, **__):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(Unavailable, match="^no CUDA driver: libcuda.so.1"):
        Device(0)


def test_a_drivers_error_is_one_sentence(monkeypatch):
    class Driver:
        def cuInit(self, flags):
            return 100

        def cuGetErrorString(self, status, text):
            text._obj.value = b"no CUDA-capable device is detected"
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    with pytest.raises(DeviceError, match="^cuInit: no CUDA-capable device is detected$"), Device(0):
        pass

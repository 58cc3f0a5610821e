"""The GPU's watts, clock and temperature: the right GPU, and no harm from anything that fails (CLI-15)."""

import sys
import threading
import time
import types

import pytest

from pyllmc import monitor
from pyllmc.monitor import NOTHING, GpuMonitor, GpuReading, gpu_conditions

WATTS = {"GPU-first": 100_000, "GPU-second": 650_500}


class NvmlError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A pynvml of two GPUs; `fail` holds the functions that raise."""
    stub = types.ModuleType("pynvml")
    stub.NVML_CLOCK_SM, stub.NVML_CLOCK_MEM, stub.NVML_TEMPERATURE_GPU = 1, 2, 0
    stub.fail, stub.calls = {}, []

    def function(name, answer):
        def called(*arguments):
            stub.calls.append(name)
            if name in stub.fail:
                raise stub.fail[name]
            return answer(*arguments)

        setattr(stub, name, called)

    def handle(uuid):
        if uuid not in WATTS:
            raise NvmlError("Not Found")
        return uuid

    function("nvmlInit", lambda: None)
    function("nvmlShutdown", lambda: None)
    function("nvmlDeviceGetHandleByUUID", handle)
    function("nvmlDeviceGetPowerUsage", lambda handle: WATTS[handle])
    function("nvmlDeviceGetClockInfo", lambda handle, kind: 1980)
    function("nvmlDeviceGetTemperature", lambda handle, sensor: 61)
    function("nvmlSystemGetDriverVersion", lambda: "580.159.04")
    function("nvmlDeviceGetEnforcedPowerLimit", lambda handle: 700_000)
    function("nvmlDeviceGetMaxClockInfo", lambda handle, kind: 1995)
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    return stub


def read(uuid="GPU-second"):
    """(first reading, problem) of a monitor that is closed again."""
    with GpuMonitor(uuid) as watch:
        reading = watch.first(30)
    assert not watch._thread.is_alive()
    return reading, watch.problem


def test_the_gpu_is_found_by_its_uuid(nvml):
    assert read() == (GpuReading(650.5, 1980, 61), None)
    assert read("GPU-first") == (GpuReading(100.0, 1980, 61), None)
    assert nvml.calls.count("nvmlInit") == nvml.calls.count("nvmlShutdown") == 2


def test_a_binding_that_wants_bytes(nvml, monkeypatch):
    def by_bytes(uuid):
        if not isinstance(uuid, bytes):
            raise TypeError("bytes expected")
        return uuid.decode()

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByUUID", by_bytes)
    assert read()[0].power_w == 650.5


@pytest.mark.parametrize("field, verb", [("power_w", "PowerUsage"), ("sm_clock_mhz", "ClockInfo"), ("temperature_c", "Temperature")])
def test_each_field_is_missing_on_its_own(nvml, field, verb):
    nvml.fail[f"nvmlDeviceGet{verb}"] = NvmlError("Not Supported")
    reading, problem = read()
    assert problem is None
    assert reading == GpuReading(650.5, 1980, 61)._replace(**{field: None})


def test_names_that_a_binding_lacks(nvml):
    del nvml.nvmlDeviceGetPowerUsage, nvml.NVML_CLOCK_SM
    assert read()[0] == GpuReading(None, None, 61)


@pytest.mark.parametrize(
    "verb, error, part",
    [("nvmlInit", NvmlError("Driver/library version mismatch"), "version mismatch"),
     ("nvmlInit", OSError("libnvidia-ml.so.1 not found"), "libnvidia-ml.so.1"),
     ("nvmlDeviceGetHandleByUUID", NvmlError("Not Found"), "Not Found"),
     ("nvmlShutdown", NvmlError("Uninitialized"), None)],
)  # fmt: skip
def test_what_fails_at_the_ends(nvml, verb, error, part):
    nvml.fail[verb] = error
    reading, problem = read()
    if part is None:
        assert reading.power_w == 650.5
    else:
        assert reading == NOTHING and part in problem and problem.startswith("no GPU watts")


def test_a_gpu_that_answers_nothing(nvml):
    for verb in ("PowerUsage", "ClockInfo", "Temperature"):
        nvml.fail[f"nvmlDeviceGet{verb}"] = NvmlError("GPU is lost")
    reading, problem = read()
    assert reading == NOTHING and "GPU is lost" in problem


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read() == (NOTHING, "no GPU watts, clock and temperature: the package nvidia-ml-py is not installed")


def test_a_device_without_a_uuid(nvml):
    assert read("") == (NOTHING, "no GPU watts, clock and temperature: NVML: the device has no UUID")


def test_a_driver_that_hangs_holds_nobody_up(nvml, monkeypatch):
    monkeypatch.setattr(monitor, "PATIENCE_S", 0.01)
    gate = threading.Event()
    monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", lambda handle: gate.wait(30))
    watch = GpuMonitor("GPU-second")
    assert watch.first(0.01) == NOTHING == watch.latest()
    watch.close()
    gate.set()
    watch._thread.join(30)
    assert not watch._thread.is_alive()


def test_looking_often_asks_seldom(nvml, monkeypatch):
    monkeypatch.setattr(monitor, "EVERY_S", 3600)
    with GpuMonitor("GPU-second") as watch:
        watch.first(30)
        for _ in range(1000):
            assert watch.latest().power_w == 650.5
        assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1
        watch._read_at -= monitor.STALE_S
        assert watch.latest() == NOTHING  # the driver must have hung


def test_readings_follow_the_gpu(nvml, monkeypatch):
    monkeypatch.setattr(monitor, "EVERY_S", 0.001)
    with GpuMonitor("GPU-second") as watch:
        assert watch.first(30).power_w == 650.5
        monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", lambda handle: 300_000)
        deadline = time.monotonic() + 30
        while watch.latest().power_w != 300.0 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert watch.latest().power_w == 300.0


# -- the conditions of a measurement ---------------------------------------------------------------

ALL = {"driver": "580.159.04", "power_limit_w": 700.0, "max_sm_clock_mhz": 1995, "memory_clock_mhz": 1980,
       "power_w": 650.5, "sm_clock_mhz": 1980, "temperature_c": 61}  # fmt: skip


def test_conditions(nvml, monkeypatch):
    assert gpu_conditions("GPU-second") == (ALL, None)
    monkeypatch.setattr(nvml, "nvmlSystemGetDriverVersion", lambda: b"580.159.04")
    assert gpu_conditions("GPU-second") == (ALL, None)
    assert nvml.calls.count("nvmlInit") == nvml.calls.count("nvmlShutdown") == 2


def test_each_condition_is_missing_on_its_own(nvml):
    for verb, name in (("SystemGetDriverVersion", "driver"), ("DeviceGetEnforcedPowerLimit", "power_limit_w"),
                       ("DeviceGetMaxClockInfo", "max_sm_clock_mhz")):  # fmt: skip
        nvml.fail = {f"nvml{verb}": NvmlError("Not Supported")}
        assert gpu_conditions("GPU-second") == ({**ALL, name: None}, None)


def test_no_conditions_at_all(nvml, monkeypatch):
    nothing = dict.fromkeys(ALL)
    assert gpu_conditions("GPU-third") == (nothing, "NVML: Not Found")
    gate = threading.Event()
    monkeypatch.setattr(nvml, "nvmlInit", lambda: gate.wait(30))
    assert gpu_conditions("GPU-second", 0.01) == (nothing, "NVML: no answer within 0.01 s")
    gate.set()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_conditions("GPU-second", 30) == (nothing, "the package nvidia-ml-py is not installed")

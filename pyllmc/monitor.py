"""Watts, clock and temperature of the GPU that trains, through NVML where it answers.

NVML comes with the driver, its Python binding (nvidia-ml-py) is optional. Nothing here can end or slow a run:
a thread asks, twice a second; what fails is missing, and said so once.
"""

import threading
import time
from typing import NamedTuple

EVERY_S = 0.5  # between two polls: NVML averages its power reading over a good part of that
STALE_S = 5.0  # a reading older than this is no answer: a driver that hangs would otherwise report for ever
PATIENCE_S = 1.0  # for the thread to end: a driver that hangs must not hang the run with it


class GpuReading(NamedTuple):
    """power_w: watts of the board. sm_clock_mhz: of the multiprocessors. temperature_c: of the chip. Each
    None where NVML gave no answer."""

    power_w: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None


NOTHING = GpuReading()
# What a measurement depends on beside the GPU's name; see gpu_conditions.
CONDITIONS = ("driver", "power_limit_w", "max_sm_clock_mhz", "memory_clock_mhz", *GpuReading._fields)


class GpuMonitor:
    """latest() is the newest GpuReading of the GPU with this UUID, or NOTHING; it never waits.

    uuid: as llmc_device has it. Ordinals won't do: NVML counts all GPUs, in its own order, and CUDA only the
    visible ones. `problem` is a sentence when there is nothing to read, else None. close() ends the thread.
    """

    def __init__(self, uuid):
        self.problem = None
        self._reading, self._read_at = NOTHING, 0.0
        self._answered, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, args=(uuid,), name="gpu monitor", daemon=True)
        self._thread.start()

    def latest(self):
        return self._reading if time.monotonic() - self._read_at < STALE_S else NOTHING

    def first(self, timeout=PATIENCE_S):
        """Wait for the first answer, `timeout` seconds at most, and return it."""
        self._answered.wait(timeout)
        return self.latest()

    def close(self):
        self._closing.set()
        self._thread.join(PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _work(self, uuid):
        try:
            nvml = Nvml(uuid)
        except Exception as error:
            self.problem = f"no GPU watts, clock and temperature: {_reason(error)}"
            self._answered.set()
            return
        while True:
            reading = nvml.read()
            if reading == NOTHING and not self._answered.is_set():
                self.problem = f"no GPU watts, clock and temperature: {nvml.problem}"
            self._reading, self._read_at = reading, time.monotonic()
            self._answered.set()
            if self._closing.wait(EVERY_S):
                break
        nvml.close()


class Nvml:
    """One GPU in NVML. The constructor raises whatever is in the way; read() and close() raise nothing."""

    def __init__(self, uuid):
        import pynvml  # optional, and what it loads is the driver's

        if not uuid:
            raise LookupError("the device has no UUID")
        self._nvml, self.problem = pynvml, None
        pynvml.nvmlInit()
        try:
            self._handle = self._find(uuid)
        except Exception:
            self.close()
            raise

    def read(self):
        nvml, handle = self._nvml, self._handle
        # looked up inside the attempt: an older binding may lack a name
        return GpuReading(
            self._attempt(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            self._attempt(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            self._attempt(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        )

    def conditions(self):
        """{name: value or None} for CONDITIONS."""
        nvml, handle, now = self._nvml, self._handle, self.read()

        def driver():
            version = nvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else version  # bytes before binding 11.5

        return {
            "driver": self._attempt(driver),
            "power_limit_w": self._attempt(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "max_sm_clock_mhz": self._attempt(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": self._attempt(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            **now._asdict(),
        }

    def close(self):
        self._attempt(self._nvml.nvmlShutdown)

    def _find(self, uuid):
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except TypeError:  # bindings before 11.5 take what C takes
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    def _attempt(self, query):
        try:
            return query()
        except Exception as error:
            self.problem = _reason(error)
            return None


def _reason(error):
    if isinstance(error, ModuleNotFoundError):
        return "the package nvidia-ml-py is not installed"
    return f"NVML: {error}"


def gpu_conditions(uuid, timeout=PATIENCE_S):
    """({name: value} that a measurement on the GPU of this UUID depends on, why it is missing or None).

    driver: its version. power_limit_w: that the board is held to. sm_clock_mhz, memory_clock_mhz: now;
    max_sm_clock_mhz: at most. temperature_c, power_w: now. None for what NVML doesn't answer. A driver that
    hangs is given up after `timeout` seconds.
    """
    found, problem = dict.fromkeys(CONDITIONS), [f"NVML: no answer within {timeout:g} s"]

    def ask():
        try:
            nvml = Nvml(uuid)
        except Exception as error:
            problem[0] = _reason(error)
            return
        found.update(nvml.conditions())
        problem[0] = nvml.problem if all(value is None for value in found.values()) else None
        nvml.close()

    asking = threading.Thread(target=ask, name="gpu conditions", daemon=True)
    asking.start()
    asking.join(timeout)
    return dict(found), problem[0]

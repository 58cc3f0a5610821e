"""A few calls of the CUDA driver and of cuBLAS, to measure what a device can do at best.

The engine has no verb for a bare copy or a bare product, and needs none. The driver's own library comes with
the driver, cuBLAS is the one that the engine loads.
"""

import contextlib
import ctypes

from .. import _find
from ..errors import DeviceError, LibraryNotFound, OutOfMemory, Unavailable

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
NO_TRANSPOSE = 0
# cudaDataType, cublasComputeType_t: storage of the factors and the result, arithmetic
TYPES = {"bf16": (14, 68), "tf32": (0, 77), "fp32": (0, 68)}  # 14: bf16, 0: fp32; 68: fp32 sums, 77: TF32 products
CUBLAS = ("libcublas.so.13", "libcublas.so.12")


class Device:
    """A CUDA device by its ordinal among the visible ones, on its primary context; use it in a `with` block.

    Raises Unavailable without a driver, OutOfMemory, and DeviceError for all else that fails. Everything is
    enqueued on the default stream.
    """

    def __init__(self, ordinal):
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unavailable(f"no CUDA driver: {error}") from None
        self._ordinal, self._memory, self._events, self._blas = ordinal, [], [], None

    def __enter__(self):
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), self._ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxPushCurrent_v2", context)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(DeviceError):
            self.synchronize()
        if self._blas is not None:
            self._blas.cublasDestroy_v2(self._blas_handle)
        for event in self._events:
            self._driver.cuEventDestroy_v2(event)
        for memory in self._memory:
            self._driver.cuMemFree_v2(memory)
        self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self._driver.cuDevicePrimaryCtxRelease_v2(self._device)

    def allocate(self, count):
        """`count` bytes of device memory, until the block ends."""
        memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(count))
        self._memory.append(memory)
        return memory

    def upload(self, array):
        """Device memory with the bytes of a contiguous NumPy array."""
        memory = self.allocate(array.nbytes)
        self._call("cuMemcpyHtoD_v2", memory, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
        return memory

    def copy_half(self, memory, count):
        """Enqueue a copy of the first `count` bytes of `memory` to the `count` after them."""
        after = ctypes.c_uint64(memory.value + count)
        self._call("cuMemcpyDtoDAsync_v2", after, memory, ctypes.c_size_t(count), None)

    def product(self, out, left, right, n, arithmetic):
        """Enqueue out = left right of n x n matrices in "bf16", "tf32" or "fp32" arithmetic."""
        if self._blas is None:
            self._blas, self._blas_handle = _cublas(), ctypes.c_void_p()
            self._blas_call("cublasCreate_v2", ctypes.byref(self._blas_handle))
        kind, compute = TYPES[arithmetic]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self._blas_call(
            "cublasGemmEx", self._blas_handle, NO_TRANSPOSE, NO_TRANSPOSE, n, n, n, ctypes.byref(one),
            _pointer(left), kind, n, _pointer(right), kind, n, ctypes.byref(zero), _pointer(out), kind, n,
            compute, -1,
        )  # fmt: skip

    def timed(self, enqueue):
        """Milliseconds on the device of what the function `enqueue` enqueues."""
        if not self._events:
            for _ in range(2):
                event = ctypes.c_void_p()
                self._call("cuEventCreate", ctypes.byref(event), 0)
                self._events.append(event)
        start, end = self._events
        self._call("cuEventRecord", start, None)
        enqueue()
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        ms = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(ms), start, end)
        return ms.value

    def synchronize(self):
        self._call("cuCtxSynchronize")

    def _call(self, name, *arguments):
        status = getattr(self._driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            kind = OutOfMemory if status == OUT_OF_MEMORY else DeviceError
            raise kind(f"{name}: {text.value.decode() if text.value else f'error {status}'}")

    def _blas_call(self, name, *arguments):
        status = getattr(self._blas, name)(*arguments)
        if status:
            raise DeviceError(f"{name} returned status {status}")


def _pointer(memory):
    return ctypes.c_void_p(memory.value)


def _cublas():
    for soname in CUBLAS:
        with contextlib.suppress(LibraryNotFound, OSError):
            _find.offer(soname)
            return ctypes.CDLL(soname)
    raise Unavailable(f"cuBLAS is not there: none of {', '.join(CUBLAS)} (pip install nvidia-cublas has it)")

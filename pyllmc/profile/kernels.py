"""The kernels that a device ran, from CUPTI through NVIDIA's Python binding (extra: profile)."""

import contextlib
import ctypes
import functools
import re

from ..errors import Unavailable
from .alignment import Kernel

BUFFER_BYTES = 8 << 20
FLUSH_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full too


class Collector:
    """Collects kernels, copies and fills between start() and stop(); take() hands over those since the last one.

    Raises Unavailable with the reason where CUPTI is absent or refuses. Synchronize the device before take():
    only finished work is in it. Start it before graphs are captured, so that CUPTI knows their kernels.
    """

    def __init__(self):
        self.untimed = 0  # records without a time, which are left out
        self._found, self._kinds = [], []
        self._cupti = _cupti()

    def start(self):
        cupti = self._cupti
        kinds = cupti.ActivityKind
        with _explained():
            cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
            for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET):
                cupti.activity_enable(kind)
                self._kinds.append(kind)

    def take(self):
        """Kernels in order of their starts."""
        with _explained():
            self._cupti.activity_flush_all(FLUSH_FORCED)
        found, self._found = self._found, []
        return sorted(found, key=lambda kernel: kernel.start_us)

    def stop(self):
        for kind in self._kinds:
            with contextlib.suppress(Exception):  # what can't be switched off ends with the process
                self._cupti.activity_disable(kind)
        if self._kinds:
            with contextlib.suppress(Exception):  # nothing of ours may be called when the interpreter is gone
                self._cupti.activity_flush_all(FLUSH_FORCED)
        self._kinds, self._found = [], []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def _completed(self, activities):
        """Called by a thread of CUPTI's; the records are gone when it returns."""
        kinds = self._cupti.ActivityKind
        for record in activities:
            if record.kind == kinds.CONCURRENT_KERNEL:
                name = readable(record.name)
            elif record.kind == kinds.MEMCPY:
                name = f"copy {_copy_kind(self._cupti, record.copy_kind)}"
            elif record.kind == kinds.MEMSET:
                name = "fill"
            else:
                continue
            if record.start and record.end:  # nanoseconds; 0 says that none could be had
                self._found.append(Kernel(name, record.start / 1e3, record.end / 1e3, record.stream_id))
            else:
                self.untimed += 1


def _cupti():
    with _explained():
        from cupti import cupti

        return cupti


@contextlib.contextmanager
def _explained():
    """Whatever CUPTI, its binding or the driver has to complain about, as one sentence of ours."""
    try:
        yield
    except ImportError as error:
        missing = getattr(error, "name", None) or str(error)
        raise Unavailable(f"CUPTI can't be used: no module {missing} (pip install cupti-python)") from None
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        hint = ""
        if "PRIVILEGE" in text.upper() or "PERMISSION" in text.upper():
            hint = "; the driver lets only administrators profile (NVreg_RestrictProfilingToAdminUsers)"
        raise Unavailable(f"CUPTI can't be used: {text}{hint}") from None


def _copy_kind(cupti, number):
    try:
        return {"HTOD": "to device", "DTOH": "to host", "DTOD": "on device"}[cupti.ActivityMemcpyKind(number).name]
    except (ValueError, KeyError):
        return f"of kind {number}"


@functools.cache
def readable(name):
    """A kernel's name without its namespaces, arguments and return type; template arguments stay.

    name: mangled or not. What isn't C++ stays as it is.
    """
    text = _demangled(name or "unnamed")
    text = text.replace("(anonymous namespace)::", "").replace("__nv_bfloat16", "bf16")
    text = re.sub(r"\((?:int|bool|unsigned int|long)\)", "", text)  # "(int)8" in template arguments
    text = re.sub(r"^void ", "", text)
    depth, end = 0, len(text)
    for at, letter in enumerate(text):  # the parameter list begins at the first parenthesis outside <...>
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            end = at
            break
    return re.sub(r"\b(?:\w+::)+", "", text[:end]) or text


def _demangled(name):
    if not name.startswith("_Z"):
        return name
    library = _cxx()
    if library is None:
        return name
    status = ctypes.c_int()
    memory = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not memory:
        return name
    text = ctypes.string_at(memory).decode(errors="replace")
    library.free(ctypes.c_void_p(memory))
    return text


@functools.cache
def _cxx():
    """The C++ run-time library, which every engine has loaded, or None."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.free.restype = None
        return library
    except (OSError, AttributeError):
        return None

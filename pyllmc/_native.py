"""The engine behind its C ABI: the header parsed by cffi, a loaded library, a model handle.

Importing this module loads no library. cffi releases the interpreter lock during every engine call.
"""

import contextlib
import functools
import logging
import os
import re
import threading
import time
from pathlib import Path

import cffi

from . import _find
from .errors import (
    AbiMismatch,
    DeviceError,
    InvalidArgument,
    LibraryNotFound,
    LlmcError,
    OutOfMemory,
    ResultTimeout,
    StateError,
    Unavailable,
)

log = logging.getLogger("pyllmc")

RAISES = {
    "LLMC_INVALID": InvalidArgument, "LLMC_NO_MEMORY": OutOfMemory, "LLMC_DEVICE": DeviceError,
    "LLMC_STATE": StateError, "LLMC_TIMEOUT": ResultTimeout, "LLMC_UNAVAILABLE": Unavailable,
    "LLMC_INTERNAL": LlmcError,
}  # fmt: skip
WAIT_MS = 100  # longest single wait inside the engine: between two, Python looks after its signals


@functools.cache
def interface():
    """The cffi.FFI of llmc.h, from the text between its two marks."""
    path = _find.header_path()
    marked = re.search(r"/\* -+ begin ABI.*?\*/(.*)/\* -+ end ABI -+ \*/", path.read_text(), re.DOTALL)
    if not marked:
        raise AbiMismatch(f"{path}: the marks around the ABI are missing")
    ffi = cffi.FFI()
    ffi.cdef(marked[1])
    return ffi


@functools.cache
def constants():
    """{name: value} of the header's enumerators."""
    text = re.sub(r"/\*.*?\*/", "", _find.header_path().read_text(), flags=re.DOTALL)
    return {name: int(value) for name, value in re.findall(r"\b(LLMC_[A-Z0-9_]+)\s*=\s*(\d+)", text)}


class Library:
    """One loaded engine library that agrees with this package's header. Get one from `load`."""

    def __init__(self, path):
        self.path, self.ffi = Path(path), interface()
        self._pid = os.getpid()
        with _idle_threads_sleep():
            self._lib = _find.open_with_dependencies(path, self.ffi.dlopen)
        self._check_abi()
        self._raises = {constants()[name]: error for name, error in RAISES.items()}
        self.backend = self.text("llmc_backend")
        for soname in _find.OPENED_LATER.get(self.backend, ()):
            _find.offer(soname)
        self.build_info = self.text("llmc_build_info")

    def call(self, verb, *args):
        """Call a verb that returns a status; a status other than LLMC_OK is raised with the engine's text."""
        if os.getpid() != self._pid:
            self._refuse_fork()
        status = getattr(self._lib, verb)(*args)
        if status:
            message = self.ffi.string(self._lib.llmc_last_error()).decode(errors="replace")
            raise self._raises.get(status, LlmcError)(message or f"{verb} returned status {status}")

    def plain(self, verb, *args):
        """Call a verb that returns no status."""
        if os.getpid() != self._pid:
            self._refuse_fork()
        return getattr(self._lib, verb)(*args)

    def text(self, verb, *args):
        """Call a verb that returns a C string."""
        return self.ffi.string(self.plain(verb, *args)).decode(errors="replace")

    def device_count(self):
        """Devices that this library can use."""
        count = self.ffi.new("int32_t *")
        self.call("llmc_device_count", count)
        return count[0]

    def device_info(self, ordinal=0):
        """The fields of llmc_device as a dict."""
        info = self.ffi.new("llmc_device *")
        self.call("llmc_device_info", ordinal, info)
        return as_dict(self.ffi, info[0])

    def _refuse_fork(self):
        raise StateError(
            f"{self.path.name} was loaded by process {self._pid}, of which this one is a fork; threads "
            "and devices don't survive a fork: use pyllmc in one of the two only, or start the other "
            'with multiprocessing.get_context("spawn")'
        )

    def _check_abi(self):
        missing = []
        for name in dir(self._lib):
            try:
                getattr(self._lib, name)
            except AttributeError:
                missing.append(name)
        remedy = f"{self.path} and the package in {_find.PACKAGE} are of different versions: run `make` again"
        if "llmc_abi_version" not in missing:
            found, wanted = self._lib.llmc_abi_version(), constants()["LLMC_ABI_VERSION"]
            if found != wanted:
                raise AbiMismatch(f"the engine has ABI {found}, the package expects {wanted}: {remedy}")
        if missing:
            raise AbiMismatch(f"the engine lacks {', '.join(missing)}: {remedy}")
        for name in self.ffi.list_types()[0]:
            kind = self.ffi.typeof(name)
            if kind.kind != "struct" or kind.fields is None:
                continue
            found = self._lib.llmc_struct_size(name.removeprefix("llmc_").encode())
            if found != self.ffi.sizeof(kind):
                raise AbiMismatch(
                    f"the engine's {name} has {found} bytes, the package expects "
                    f"{self.ffi.sizeof(kind)}: {remedy}"
                )


@contextlib.contextmanager
def _idle_threads_sleep():
    """Has OpenMP, which reads its environment when it is loaded, let idle threads sleep and not spin.

    Spinning saves microseconds on a machine of one's own, and costs whole time slices on a shared one, where
    every barrier then waits for a thread that isn't running. A choice that the user has made is kept.
    """
    own = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    if own:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        yield
    finally:
        if own:
            del os.environ["OMP_WAIT_POLICY"]


@functools.cache
def _load(path):
    return Library(path)


def load(backend, library=None):
    """The Library of "cpu" or "cuda". Each file is loaded once. Raises LibraryNotFound or AbiMismatch."""
    loaded = _load(_find.find_library(backend, library).resolve())
    if loaded.backend != backend:
        raise InvalidArgument(
            f"{loaded.path} is a {loaded.backend} engine, but device {backend!r} was asked for"
        )
    return loaded


def choose(device="auto", library=None):
    """(Library, ordinal, reason) for a device: "auto", "cpu", "cuda" or "cuda:N".

    "auto" takes the first CUDA device when the CUDA library and a device are there, else the CPU. A CUDA
    library that is there but can't be used is reported as a warning. Raises InvalidArgument for another name.
    """
    asked = re.fullmatch(r"auto|(cpu)|(cuda)(?::(\d{1,4}))?", device if isinstance(device, str) else "")
    if not asked:
        raise InvalidArgument(f"device {device!r} is not one of auto, cpu, cuda, cuda:N")
    if backend := asked[1] or asked[2]:
        return load(backend, library), int(asked[3] or 0), "as asked"
    if library or os.environ.get(_find.OVERRIDE):
        only = _load(_find.find_library("cpu", library).resolve())
        return only, 0, f"{only.path} was named"
    try:
        cuda = load("cuda")
        if cuda.device_count() > 0:
            return cuda, 0, "a CUDA device is there"
        reason = "no CUDA device"
    except LibraryNotFound as error:
        reason = "no CUDA engine was built"
        if any(path.is_file() for path in _find.library_paths("cuda")):
            reason = f"the CUDA engine can't be used: {error}"
            _warn_once(f"training on the CPU, because {reason}")
    except (AbiMismatch, DeviceError, Unavailable) as error:
        reason = f"the CUDA engine can't be used: {error}"
        _warn_once(f"training on the CPU, because {reason}")
    return load("cpu"), 0, reason


@functools.cache
def _warn_once(text):
    log.warning("%s", text)


class Handle:
    """A llmc_model with an orderly end.

    Calls may be running, in this or another thread, and NumPy views of its batch memory may be alive when
    it is closed: new calls are refused at once, and the memory goes when the last of them is gone.
    """

    def __init__(self, library, config, options):
        self.library = library
        self._closed, self._busy, self._views = False, [], 0
        # calls come and go without it: a list's own operations are atomic
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        out = library.ffi.new("llmc_model **")
        library.call("llmc_model_create", config, options, out)
        self._model = out[0]

    @property
    def closed(self):
        return self._closed

    def call(self, verb, *args):
        """A verb that takes the model first and returns a status."""
        return self._run(self.library.call, verb, args)

    def text(self, verb, *args):
        """A verb that takes the model first and returns a C string."""
        return self._run(self.library.text, verb, args)

    def wait(self, verb, before, after, timeout=None):
        """A verb with a wait_ms between `before` and `after`, called until it is done.

        Single waits are short, so that Ctrl-C is heard. timeout: seconds, None for ever, then ResultTimeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        wait_ms = WAIT_MS
        while True:
            if deadline is not None:
                wait_ms = max(0, min(WAIT_MS, int((deadline - time.monotonic()) * 1000)))
            try:
                return self._run(self.library.call, verb, (*before, wait_ms, *after))
            except ResultTimeout:
                if deadline is not None and time.monotonic() >= deadline:
                    raise ResultTimeout(f"{verb}: not ready within {timeout:g} s") from None

    def view(self, pointer, dtype_bytes):
        """A buffer over engine memory that keeps the model's memory alive as long as it is in use."""
        with self._lock:
            self._views += 1
        ffi = self.library.ffi
        return ffi.buffer(ffi.gc(pointer, self._drop_view), dtype_bytes)

    def close(self):
        """Refuse new calls, wait for running ones of other threads, free. Again: nothing happens."""
        mine = threading.get_ident()
        with self._changed:
            self._closed = True
            while any(thread != mine for thread in self._busy):
                self._changed.wait(WAIT_MS / 1000)
            self._free_if_last()

    def _run(self, function, verb, args):
        mine = threading.get_ident()
        try:
            self._busy.append(mine)  # before the look at _closed: close() then sees this call, or this call close()
            if self._closed:
                raise StateError(f"{verb}: the model is closed")
            return function(verb, self._model, *args)
        finally:
            self._busy.remove(mine)
            if self._closed:
                with self._lock:
                    self._changed.notify_all()
                    self._free_if_last()

    def _drop_view(self, _):
        with self._lock:
            self._views -= 1
            if self._closed:
                self._free_if_last()

    def _free_if_last(self):
        if self._model is None or self._busy or self._views:
            return
        model, self._model = self._model, None
        if os.getpid() == self.library._pid:  # a forked child leaves the parent's model alone
            self.library.plain("llmc_model_free", model)


@functools.cache
def ctype(name):
    """The cffi type of a name in llmc.h ("llmc_hyper *"): ffi.new takes it without parsing the text again."""
    return interface().typeof(name)


def as_dict(ffi, struct):
    """A C struct as plain Python values: numbers, strings, lists."""
    values = {}
    for name, field in ffi.typeof(struct).fields:
        value = getattr(struct, name)
        if field.type.kind == "array":
            is_text = field.type.item.cname == "char"
            value = ffi.string(value).decode(errors="replace") if is_text else list(value)
        values[name] = value
    return values

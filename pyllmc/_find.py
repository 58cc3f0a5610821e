"""Where the engine libraries, their header, and the libraries that those need are looked for."""

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import sysconfig
from pathlib import Path

from .errors import LibraryNotFound

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parent
OVERRIDE = "PYLLMC_LIBRARY"
BACKENDS = ("cpu", "cuda")

# The wheels that carry what the engine links to, by the start of the shared object's name.
WHEELS = {
    "libcublas": "nvidia-cublas", "libcudnn": "nvidia-cudnn-cu13", "libnccl": "nvidia-nccl-cu13",
    "libcudart": "nvidia-cuda-runtime", "libnvrtc": "nvidia-cuda-nvrtc",
    "libscipy_openblas": "scipy-openblas32",
}  # fmt: skip
# What an engine opens by itself, late, and not through its list of needed objects.
OPENED_LATER = {"cuda": ("libcudnn.so.9",)}


def header_path():
    """llmc.h: shipped inside the package, or in the checkout that this package is part of."""
    tried = [PACKAGE / "llmc.h", CHECKOUT / "llmc" / "llmc.h"]
    for path in tried:
        if path.is_file():
            return path
    raise LibraryNotFound(f"llmc.h, the engine's interface, is in none of: {_listed(tried)}")


def library_paths(backend, given=None):
    """Files to try for a backend, best first; `given` or the override excludes all others."""
    override = given or os.environ.get(OVERRIDE)
    if override:
        return [Path(override)]
    name = f"libllmc_{backend}.so"
    return [PACKAGE / name, CHECKOUT / "build" / name]


def find_library(backend, given=None):
    """The library file of a backend. Raises LibraryNotFound that lists the paths tried and a hint."""
    tried = library_paths(backend, given)
    for path in tried:
        if path.is_file():
            return path
    if given:
        hint = "it was given as the library argument"
    elif os.environ.get(OVERRIDE):
        hint = f"the environment variable {OVERRIDE} names it: correct it or unset it"
    else:
        target = "make" if backend == "cpu" else "make cuda"
        hint = f"run `{target}` in the checkout, or let {OVERRIDE} name the file"
    raise LibraryNotFound(
        f"the {backend} engine library was not found; tried {_listed(tried)}; {hint} "
        f"(package in use: {PACKAGE})"
    )


def open_with_dependencies(path, dlopen):
    """`dlopen(path)`, loading what the library misses from installed wheels.

    The loader's complaint names one missing object at a time, so each is loaded from a wheel, if one has it,
    and the opening is tried again. No search path has to be set, and a library that already finds
    everything is left to the system. Raises LibraryNotFound naming the object and its wheel.
    """
    supplied = set()
    while True:
        try:
            return dlopen(os.fspath(path))
        except OSError as error:
            reason = str(error)
        missing = re.search(r"([\w.+-]+\.so[\w.]*): cannot open shared object file", reason)
        soname = missing[1] if missing else None
        if not soname or soname in supplied or soname == Path(path).name:
            wheel = f"; pip install {wheel_of(soname)} has it" if soname and wheel_of(soname) else ""
            raise LibraryNotFound(f"{path} can't be loaded: {reason}{wheel}")
        supplied.add(soname)
        _load_from_wheel(soname)


def offer(soname):
    """Load `soname` from an installed wheel, or else from the system, so that a later dlopen finds it.

    For what an engine opens only when it needs it, and does without when it isn't there: never an error. The wheel
    comes first because it was installed for this engine, while a system's library may be older.
    """
    with contextlib.suppress(OSError, LibraryNotFound):
        if not _load_from_wheel(soname):
            ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)


def wheel_of(soname):
    """The package-index name of the wheel with this shared object, or None."""
    return next((wheel for start, wheel in WHEELS.items() if soname.startswith(start)), None)


def _load_from_wheel(soname):
    """Whether a wheel, or what cuda-pathfinder searches, has it."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for start in ("nvidia", "scipy_openblas32"):
            for found in sorted(Path(folder, start).glob(f"**/{soname}")):
                open_with_dependencies(found, functools.partial(ctypes.CDLL, mode=ctypes.RTLD_GLOBAL))
                return True
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.pathfinder"):
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

        # it also looks into conda environments and toolkits
        with contextlib.suppress(DynamicLibNotFoundError, ValueError, RuntimeError):
            load_nvidia_dynamic_lib(soname.split(".so")[0].removeprefix("lib"))
            return True
    return False  # the next opening names the object once more, and that message is the one to show


def _listed(paths):
    return ", ".join(map(str, paths))

"""Under what conditions something was measured: device, driver, clocks, versions, commit, command."""

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata

from .. import _find
from ..monitor import gpu_conditions

PACKAGES = ("numpy", "cffi", "matplotlib")


def conditions(library, ordinal, argv):
    """A dict of plain values; None is n/a. `problem` says why the GPU's are missing, if they are."""
    info = library.device_info(ordinal)
    gpu, problem = gpu_conditions(info["uuid"]) if library.backend != "cpu" else ({}, None)
    return {
        "device": info["name"], "uuid": info["uuid"] or None, "backend": library.backend,
        "multiprocessors": info["multiprocessors"], **gpu, "problem": problem,
        "engine": library.build_info, "python": platform.python_version(), "system": platform.platform(),
        **{name: version(name) for name in PACKAGES},
        "load": load(), "commit": commit(), "command": shlex.join(argv),
    }  # fmt: skip


def version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load():
    """Processes that wanted to run in the last minute, this one's included."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def commit():
    """Commit of the checkout that this package lies in, "+changes" if it was edited; None outside one."""
    root = _find.CHECKOUT

    def git(*words):
        done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if os.path.realpath(git("rev-parse", "--show-toplevel")) != os.path.realpath(root):
            return None
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command_line(argv):
    """The command as somebody would type it."""
    return ["python", "-m", "pyllmc.ab", *(sys.argv[1:] if argv is None else map(str, argv))]

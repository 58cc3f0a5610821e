"""A profile as one JSON object: what was measured, under which conditions, enough to draw it all again."""

import contextlib
import dataclasses
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

from .. import _find
from ..atomic import atomic_write
from ..errors import FormatError
from ..inspection import Span

FORMAT, VERSION = "pyllmc profile", 1
NEEDED = ("conditions", "workload", "step", "spans", "analysis", "ops", "kernels", "ceilings", "memory", "notes")


def conditions(library, device):
    """What a figure depends on besides the workload. device: the fields of llmc_device."""
    return {
        "device": device["name"], "uuid": device["uuid"], "multiprocessors": device["multiprocessors"],
        "driver": driver_version(library.backend), "backend": library.backend, "libraries": library.build_info,
        "commit": _commit(), "command": ["python", "-m", "pyllmc.profile", *sys.argv[1:]],
        "python": platform.python_version(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip


def driver_version(backend):
    """The NVIDIA driver's version, None on a CPU or when it can't be told."""
    if backend == "cpu":
        return None
    with contextlib.suppress(Exception):  # optional, like everything that NVML tells
        import pynvml

        pynvml.nvmlInit()
        try:
            version = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
        return version.decode() if isinstance(version, bytes) else version
    return None


def _commit():
    """The checkout's commit, "-dirty" when it was changed since; None outside one."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "-C", str(_find.CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        return done.stdout.strip() or None
    return None


def span_dicts(spans):
    return [dataclasses.asdict(span) for span in spans]


def spans_of(profile):
    """The Spans of a profile."""
    return [Span(**span) for span in profile["spans"]]


def to_json(profile, indent=None):
    """JSON text; numbers that aren't finite become null, which JSON knows."""
    return json.dumps(_finite({"format": FORMAT, "version": VERSION, **profile}), indent=indent, allow_nan=False)


def write(profile, path):
    with atomic_write(path) as file:
        file.write((to_json(profile, indent=1) + "\n").encode())


def load(path):
    """The profile in a file. Raises OSError, or FormatError for what isn't one."""
    try:
        profile = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is no JSON: {error}") from None
    if not isinstance(profile, dict) or profile.get("format") != FORMAT:
        raise FormatError(f"{path} is no profile: \"format\" must be {FORMAT!r}")
    if profile.get("version") != VERSION:
        raise FormatError(f"{path} has version {profile.get('version')!r} of a profile, this program reads {VERSION}")
    missing = [name for name in NEEDED if name not in profile]
    if missing:
        raise FormatError(f"{path} lacks {', '.join(missing)}")
    try:
        spans_of(profile)
    except TypeError:
        raise FormatError(f"{path}: \"spans\" must hold name, lane, layer, start_us and end_us of each") from None
    return profile


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

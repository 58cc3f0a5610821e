"""Every exception of pyllmc.

Each class also derives from the built-in one a caller would guess, so that both
`except pyllmc.errors.FormatError` and `except ValueError` work. A message is one sentence that says
what is wrong, where (file and field, or argument), what was found and what would be right.
A missing or unreadable file stays Python's own OSError, which holds the path and the reason; sentence() is how
it is said.
"""

import difflib
import errno
import os


class LlmcError(Exception):
    """Base of all errors raised on purpose by pyllmc."""


class InvalidArgument(LlmcError, ValueError):
    """An argument or option is outside what is accepted."""


class FormatError(LlmcError, ValueError):
    """A file does not hold what its format says it must."""


class OutOfMemory(LlmcError, MemoryError):
    """Host or device memory does not suffice."""


class DeviceError(LlmcError, RuntimeError):
    """The device or its driver failed; the engine object that raised it is unusable."""


class StateError(LlmcError, RuntimeError):
    """A call came at the wrong time, for example on a closed object."""


class ResultTimeout(LlmcError, TimeoutError):
    """A result was not ready within the time the caller allowed."""


class Unavailable(LlmcError, RuntimeError):
    """Something optional (a library, a vocabulary, a device feature, what a model needs to train) is not there."""


class LibraryNotFound(LlmcError, OSError):
    """No engine library could be loaded."""


class AbiMismatch(LlmcError, RuntimeError):
    """The engine library and this Python package are of different versions."""


# What the system's own words leave open. Others stay as they are.
REASONS = {
    errno.ENOENT: "no such file or folder", errno.EISDIR: "a folder, expected a file",
    errno.ENOTDIR: "a file stands where a folder is expected", errno.EEXIST: "exists already",
    errno.EACCES: "no permission", errno.EPERM: "not permitted", errno.EROFS: "the file system can only be read",
    errno.ENOSPC: "no space left on the device", errno.EDQUOT: "the disk quota is used up",
}  # fmt: skip


def sentence(error):
    """An exception's message as people are told it: an OSError as path and reason, without its number."""
    if not isinstance(error, OSError) or isinstance(error, LlmcError) or error.errno is None:
        return str(error)
    reason = REASONS.get(error.errno) or error.strerror or str(error)
    path = error.filename if error.filename2 is None else error.filename2  # of a rename, where to
    return reason if path is None or isinstance(path, int) else f"{os.fsdecode(path)}: {reason}"


def nearest(name, choices):
    """The end of an "unknown name" message: the closest choice, if one is close, and all of them."""
    choices = [str(choice) for choice in choices]
    listed = "known: " + ", ".join(choices)
    close = near(name, choices)
    return f"{close} ({listed})" if close else listed


def near(name, choices):
    """The same where the choices are too many to list: the closest one, or ""."""
    close = difflib.get_close_matches(str(name).lower(), choices, n=1)
    return f"did you mean {close[0]!r}?" if close else ""

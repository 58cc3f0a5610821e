"""Files that are either complete or absent."""

import contextlib
import os
import tempfile
from pathlib import Path

UMASK = os.umask(0o077)  # it can be read only by setting it: done once, before threads exist
os.umask(UMASK)


@contextlib.contextmanager
def atomic_write(path):
    """Binary file that appears at `path` only when the block ends without an exception.

    The bytes go to a hidden temporary file in the same folder (a rename is atomic only within one file
    system), reach the disk, and are then renamed over `path`. On any exception the temporary file is
    removed and what was at `path` stays as it was. A SIGKILL can leave the hidden file behind, never a
    partial `path`.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            # mkstemp makes files private; a finished file gets the mode an ordinary open() would give
            os.fchmod(file.fileno(), 0o666 & ~UMASK)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder):
    """Make renames and removals in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

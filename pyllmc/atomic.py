"""Files that are either complete or absent."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

UMASK = os.umask(0o077)  # it can be read only by setting it: done once, before threads exist
os.umask(UMASK)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the system says so without the file's name


@contextlib.contextmanager
def atomic_write(path):
    """Binary file that appears at `path` only when the block ends without an exception.

    The bytes go to a hidden temporary file in the same folder (a rename is atomic only within one file
    system), reach the disk, and are then renamed over `path`. On any exception the temporary file is
    removed and what was at `path` stays as it was. A SIGKILL can leave the hidden file behind, never a
    partial `path`. An OSError names the folder where no file can be made, `path` where the disk is full.
    """
    path = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        error.filename = str(path.parent)
        raise
    try:
        with open(descriptor, "wb") as file:
            # mkstemp makes files private; a finished file gets the mode an ordinary open() would give
            os.fchmod(file.fileno(), 0o666 & ~UMASK)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def sync_folder(folder):
    """Make renames and removals in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

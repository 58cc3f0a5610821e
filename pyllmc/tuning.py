"""What an engine has found by timing matrix products, kept for the next process in the cache folder.

Only speed depends on it: a file that can't be read, written or understood is passed over.
"""

import logging

from .atomic import atomic_write
from .cache import cache_folder
from .errors import LlmcError

log = logging.getLogger(__name__)
_told = {}  # library path: the text that it and the file have in common


def file_of(library):
    return cache_folder() / f"tuning-{library.backend}.txt"


def recall(library):
    """Give the engine what earlier processes found, once in a process."""
    if library.path in _told:
        return
    _told[library.path] = ""
    try:
        text = file_of(library).read_text(encoding="utf-8")
        library.call("llmc_tuning_import", text.encode())
        _told[library.path] = text
    except FileNotFoundError:
        pass
    except (LlmcError, OSError, ValueError) as error:
        log.info("tuning starts anew: %s", error)


def keep(library):
    """Write down what the engine has found since, with what it was given."""
    text = library.text("llmc_tuning_export")
    if text == _told.get(library.path):
        return
    _told[library.path] = text
    path = file_of(library)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        log.info("what tuning found is not kept: %s", error)

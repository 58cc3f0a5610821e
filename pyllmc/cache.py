"""Where files are kept that can be made again."""

import os
from pathlib import Path

from .errors import Unavailable


def cache_folder():
    """$PYLLMC_CACHE, else pyllmc in the user's cache folder."""
    own = os.environ.get("PYLLMC_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyllmc"


def make_folder(home, what):
    """Make the folder `home` for `what`. Raises Unavailable, which says how to choose another."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make the folder {home} for {what} ({error.strerror}): set PYLLMC_CACHE to another"
        ) from error

"""A figure into a file: which files will do, and how it gets there whole.

matplotlib is imported only where something is drawn, so that a name which won't do is refused first.
"""

import contextlib
import os
import warnings
from pathlib import Path

from .atomic import atomic_write
from .errors import InvalidArgument

SUFFIXES = (".png", ".svg")


def check_picture(path):
    """`path` as a Path if a picture can go there; else raises InvalidArgument, before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        found = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise InvalidArgument(f"{path} has {found}: pictures are written as {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise InvalidArgument(f"can't write {path}: it is a folder")
    if not path.parent.is_dir():
        raise InvalidArgument(f"can't write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidArgument(f"can't write {path}: no permission to make files in {path.parent}")
    return path


@contextlib.contextmanager
def own_settings():
    """matplotlib's defaults inside the block; afterwards the user's settings and back end are as before."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # all but the back end
        # Labels as strokes: an SVG then looks alike where our font is missing. A fixed salt: same run, same bytes.
        matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "pyllmc"})
        yield


def save(figure, path):
    """Write the figure as its file's suffix says, whole or not at all; returns the Path.

    No display is needed. Raises InvalidArgument for a name that won't do, OSError when writing fails.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    path = check_picture(path)
    with own_settings(), warnings.catch_warnings():
        # letters that the font lacks are drawn as boxes: no reason to interrupt whoever reads the terminal
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        with atomic_write(path) as file:
            if path.suffix.lower() == ".svg":
                FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
            else:
                FigureCanvasAgg(figure).print_png(file)
    return path

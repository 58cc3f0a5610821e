"""What ends `python -m pyllmc.X` while it still imports, which takes a third of a second, most of it NumPy's: Ctrl-C, or a
package that isn't there. Each has an exit status and one line, as later, and no traceback. A program that imports pyllmc
keeps its own way with signals and errors."""

import _signal as signal  # `signal` itself imports enum first, which takes longer than all of this
import os
import sys


def started_program():
    """The module of this package that is being started, such as "pyllmc.train", or the package itself; "" in any other program."""
    if sys.argv[:1] != ["-m"]:  # which Python has there until the module is found, its package being imported
        return ""
    name = "".join(sys.orig_argv[-len(sys.argv) :][:1]).removeprefix("-m")
    return name if name == __package__ or name.startswith(f"{__package__}.") else ""


def stop(number, frame):
    """End at once: nothing is begun yet. A KeyboardInterrupt could be lost in one of the import system's callbacks."""
    try:
        os.write(2, f"\n{PROGRAM}: interrupted before it began\n".encode())
    finally:
        os._exit(128 + number)


def without_package(kind, error, trace):
    """As in a shell whose virtual environment isn't active. Other errors are shown as ever."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not issubclass(kind, ModuleNotFoundError) or name in ("", __package__):
        USUAL_HOOK(kind, error, trace)
        return
    advice = "activate the environment that make installed into (. .venv/bin/activate), or run make"
    sys.stderr.write(f"{PROGRAM}: {sys.executable} has no package {name}: {advice}\n")
    sys.stderr.flush()
    os._exit(2)


def over():
    """Ctrl-C is a KeyboardInterrupt again, if it was otherwise; what isn't there is the program's affair from now on."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.excepthook is without_package:
        sys.excepthook = USUAL_HOOK


PROGRAM = started_program()
USUAL_HOOK = sys.excepthook
if PROGRAM:
    sys.excepthook = without_package
if PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # under nohup it stays ignored
    signal.signal(signal.SIGINT, stop)

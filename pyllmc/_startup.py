"""Ctrl-C while `python -m pyllmc.X` still imports, which takes a third of a second, most of it NumPy's: the exit status and
the one line that it has later too, and no traceback. A program that imports pyllmc keeps its own way with signals."""

import _signal as signal  # `signal` itself imports enum first, which takes longer than all of this
import os
import sys


def started_program():
    """The module of this package that is being started, such as "pyllmc.train"; "" in any other program."""
    if sys.argv[:1] != ["-m"]:  # which Python has there until the module is found, its package being imported
        return ""
    name = "".join(sys.orig_argv[-len(sys.argv) :][:1]).removeprefix("-m")
    return name if name.startswith(f"{__package__}.") else ""


def stop(number, frame):
    """End at once: nothing is begun yet. A KeyboardInterrupt could be lost in one of the import system's callbacks."""
    try:
        os.write(2, f"\n{PROGRAM}: interrupted before it began\n".encode())
    finally:
        os._exit(128 + number)


def over():
    """Ctrl-C is a KeyboardInterrupt again, if it was otherwise."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


PROGRAM = started_program()
if PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # under nohup it stays ignored
    signal.signal(signal.SIGINT, stop)

"""How a program of this package ends: an exit status, and one sentence on stderr for what ended it early."""

import _thread
import contextlib
import os
import signal
import sys
import threading
import warnings

from . import _startup
from .console import one_line
from .errors import LlmcError, sentence

BAD_INPUT = 2
INTERRUPTED, OUTPUT_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE


def status_of(program, body, interrupted, unread="nobody reads the output"):
    """body()'s exit status, or that of what ended it: 2 for an LlmcError or OSError, 130 for Ctrl-C, 141 for a
    reader of stdout that is gone (as after "| head"). interrupted, unread: what to say then, or functions that tell
    it. Warnings become notes."""
    try:
        _startup.over()
        with warnings.catch_warnings(), interrupt_repeated():
            warnings.showwarning = lambda text, *_, **__: print(f"note: {text}", file=sys.stderr)
            return flushed(body)
    except KeyboardInterrupt:
        print(f"\n{program}: {interrupted() if callable(interrupted) else interrupted}", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        print(f"{program}: {unread() if callable(unread) else unread}", file=sys.stderr)
        status = OUTPUT_CLOSED
    except (LlmcError, OSError) as error:
        print(f"{program}: {one_line(sentence(error))}", file=sys.stderr)
        status = BAD_INPUT
    drop_unread()
    return status


def flushed(body):
    """What body() returns, once stdout is written: at Python's own end it would be too late to say that nobody reads."""
    try:
        status = body()
    except SystemExit:  # argparse's, after --help
        drop_unread()
        raise
    if sys.stdout:
        sys.stdout.flush()
    return status


def drop_unread():
    """Let Python's end find nothing that stdout still holds for a reader who is gone: it would show an error."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


@contextlib.contextmanager
def interrupt_repeated():
    """Ctrl-C may come while Python runs a weak reference's callback or a finalizer, where an exception is printed and
    lost: it comes again then, a moment later, until it meets the program itself."""
    before = sys.unraisablehook

    def hook(lost):
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        again = threading.Timer(0.01, _thread.interrupt_main)  # not from here: this is still inside of the callback
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def interrupt_held():
    """Yields a function that says whether Ctrl-C was pressed, which ends nothing meanwhile: the block asks where it
    can stop without losing half of something. A second press ends it at once, should it hang."""
    pressed = []

    def hold(number, frame):
        pressed.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    ours = threading.current_thread() is threading.main_thread()  # Python lets no other thread decide
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

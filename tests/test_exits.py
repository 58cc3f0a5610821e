"""How command lines end: one sentence with what and where, and the exit status that belongs to it."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import hf_folder
import pytest

from pyllmc import GPT2Config, convert, evaluate, generate, plot, train
from pyllmc._find import CHECKOUT
from pyllmc.atomic import atomic_write
from pyllmc.data import __main__ as data
from pyllmc.errors import FormatError, LibraryNotFound, sentence
from pyllmc.exits import interrupt_held, status_of
from pyllmc.hf import write_pretrained
from pyllmc.profile import __main__ as profiler


def raised(work):
    with pytest.raises(OSError) as caught:
        work()
    return caught.value


def test_the_system_s_errors_become_sentences(tmp_path):
    file = tmp_path / "file"
    file.touch()
    cases = {
        "no such file or folder": ("none", lambda: open(tmp_path / "none")),
        "a folder, expected a file": ("", lambda: open(tmp_path)),
        "a file stands where a folder is expected": ("file/x", lambda: open(file / "x")),
        "exists already": ("file", lambda: file.mkdir()),
    }
    for reason, (name, work) in cases.items():
        assert sentence(raised(work)) == f"{tmp_path / name}: {reason}"
    assert sentence(OSError(errno.EIO, "Input/output error", b"x.bin")) == "x.bin: Input/output error"
    assert sentence(OSError(errno.ENOSPC, "No space left on device")) == "no space left on the device"
    assert sentence(OSError(errno.EBADF, "Bad file descriptor", 7)) == "Bad file descriptor"
    assert sentence(OSError("a text alone")) == "a text alone"
    assert sentence(LibraryNotFound("no library")) == "no library" and sentence(FormatError("odd")) == "odd"


def test_a_file_that_cannot_be_made_is_named_as_the_user_knows_it(tmp_path, monkeypatch):
    """Not by the hidden name that it has while it is written."""

    def write(path):
        with atomic_write(path) as file:
            file.write(b"x")

    assert sentence(raised(lambda: write(tmp_path / "none" / "a"))) == f"{tmp_path / 'none'}: no such file or folder"
    (tmp_path / "folder").mkdir()
    assert sentence(raised(lambda: write(tmp_path / "folder"))) == f"{tmp_path / 'folder'}: a folder, expected a file"

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert sentence(raised(lambda: write(tmp_path / "a"))) == f"{tmp_path / 'a'}: no space left on the device"
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50, context=16)
    saved = raised(lambda: write_pretrained(tmp_path / "hf", config, hf_folder.random_params(config), "fp32"))
    assert sentence(saved).startswith(f"{tmp_path}/hf/") and sentence(saved).endswith(": no space left on the device")
    assert sorted(os.listdir(tmp_path)) == ["folder"]


@pytest.mark.parametrize("error, status, said", [
    (OSError(errno.EROFS, "Read-only file system", "/mnt/x"), 2, "p: /mnt/x: the file system can only be read\n"),
    (FormatError("two\nlines"), 2, "p: two·lines\n"), (KeyboardInterrupt(), 130, "\np: stopped\n"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, "p: nobody reads the output\n"),
])  # fmt: skip
def test_statuses(capsys, error, status, said):
    def body():
        raise error

    assert status_of("p", body, "stopped") == status
    assert capsys.readouterr().err == said


def unread(*words):
    """What such a Python says on stderr, and how it ends, when nobody reads its stdout."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, *words], env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words, status", [
    ("pyllmc", 141), ("pyllmc.data list", 141), ("pyllmc.data --help", 141), ("pyllmc.train --help", 0), ("pyllmc.plot --help", 0),
    ("pyllmc.train --data none.txt", 2), ("pyllmc.plot none", 2),
])  # fmt: skip
def test_output_that_nobody_reads(words, status):
    """One sentence alone: what is left in a buffer must not fail when Python ends."""
    code, said = unread("-m", *words.split())
    assert (code, said.count("\n")) == (status, min(status, 1)), said
    assert said.endswith(": nobody reads the output\n") == (status == 141)


def test_an_error_with_output_unread():
    code = """
import sys
from pyllmc.exits import status_of

def body():
    print("left in the buffer")
    raise OSError("mine")

sys.exit(status_of("p", body, ""))
"""
    assert unread("-c", code) == (2, "p: mine\n")


def test_ctrl_c_waits_for_the_block_to_ask():
    with interrupt_held() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup: somebody else's decision stays
    try:
        with interrupt_held() as interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not interrupted() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_that_python_loses_comes_again(capsys):
    """In the callback of a weak reference an exception is printed and forgotten."""

    class Thing:
        pass

    def body():
        thing = Thing()
        kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        for _ in range(1000):
            time.sleep(0.01)
        return kept

    def other():
        thing = Thing()
        kept = weakref.ref(thing, lambda _: 1 / 0)
        del thing
        return kept and 0

    before, sys.unraisablehook = sys.unraisablehook, lambda lost: print(lost.exc_type.__name__, file=sys.stderr)
    try:
        assert status_of("p", body, "stopped") == 130
        assert capsys.readouterr().err == "\np: stopped\n"
        assert status_of("p", other, "stopped") == 0
        assert capsys.readouterr().err == "ZeroDivisionError\n"
    finally:
        sys.unraisablehook = before


def test_no_other_thread_holds_ctrl_c():
    told = []

    def work():
        with interrupt_held() as interrupted:
            told.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == [False] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("program, words, said", [
    (train, "--tokenizer none.bin", "none.bin: no such file or folder"), (train, "-i . -o new", ".: a folder, expected a file"),
    (train, "-e none.bin -o new", "none.bin: no such file or folder"), (train, "--config .", ".: a folder, expected a file"),
    (train, "-o file", "file is a file, expected a folder for the run (-o)"),
    (train, "-x 1 -o file/run", "file/run: a file stands where a folder is expected"),
    (generate, "none.bin", "none.bin: no such file or folder"), (generate, "file/x", "file/x: a file stands where a folder is"),
    (evaluate, "none.bin --data x", "none.bin: no such file or folder"), (convert, "none hf", "none: no such file or folder"),
    (data, "inspect .", ".: a folder, expected a file"), (data, "hellaswag .", ".: a folder, expected a file"),
    (profiler, "--draw none", "none: no such file or folder"), (plot, "none", "none: no such file or folder"),
])  # fmt: skip
def test_wrong_paths(tmp_path, monkeypatch, capsys, program, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert program.main(words.split()) == 2
    err = capsys.readouterr().err
    errors = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1 and said in errors[0] and "Errno" not in err
    assert os.listdir(tmp_path) == ["file"]

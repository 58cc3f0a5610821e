"""Ctrl-C and missing packages while a program of the package still imports, and programs that import the package."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyllmc.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pyllmc"
# Python imports it by itself, before anything else: Ctrl-C at the moment when a module is asked for
SITE = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == os.environ["STOP_AT"]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYLLMC_CACHE": str(tmp_path / "cache"), "STOP_AT": ""}


def python(environment, *words, **more):
    return subprocess.run(
        [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, timeout=120, **more
    )


@pytest.mark.parametrize("name, module", [
    ("train", "pyllmc.config"), ("train", "numpy"), ("train", "pyllmc.train_options"), ("generate", "pyllmc.weights"),
    ("evaluate", "pyllmc.evaluate_options"), ("convert", "pyllmc.nanogpt"), ("plot", "pyllmc.plot_options"),
    ("data", "pyllmc.data.options"), ("ab", "pyllmc.ab.command"), ("profile", "pyllmc.profile.session"),
])  # fmt: skip
def test_ctrl_c_among_the_imports_is_one_line(environment, name, module):
    done = python(environment | {"STOP_AT": module}, "-m", f"pyllmc.{name}", "--help")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"\npyllmc.{name}: interrupted before it began\n"


def test_once_begun_it_is_what_the_program_says(environment, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    words = ["prepare", tmp_path / "a.txt", "-o", tmp_path / "out", "--tokenizer", "gpt2"]
    done = python(environment | {"STOP_AT": "tiktoken"}, "-m", "pyllmc.data", *words)
    assert (done.returncode, done.stderr.count("\n")) == (130, 2) and "the same command goes on" in done.stderr


def test_where_it_is_ignored_it_stays_so(environment):
    """As under nohup."""
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    done = python(environment | {"STOP_AT": "numpy"}, "-m", "pyllmc.train", "--help", preexec_fn=ignore)
    assert (done.returncode, done.stderr) == (0, "") and "usage: python -m pyllmc.train" in done.stdout


@pytest.mark.parametrize("words", [
    ["-c", "import own", "-m", "pyllmc.train"], ["-m", "own"], ["-m", "own.main", "-m", "pyllmc.train"], ["own/main.py", "-m"],
    ["-c", "import sys; sys.argv, sys.orig_argv = ['-m'], []; import own"],
    ["-c", "import sys; sys.argv = ['own']; import own", "pyllmc.train"],
])  # fmt: skip
def test_other_programs_keep_their_signals(environment, tmp_path, words):
    """Also one whose package imports this one while Python looks for the module to start."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(
        "import signal, pyllmc\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler\nprint('kept')"
    )
    for name in ("main", "__main__"):
        (tmp_path / "own" / f"{name}.py").write_text("import own")
    done = python(environment, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "kept\n", "")


@pytest.mark.parametrize("milliseconds", range(0, 601, 40))
def test_ctrl_c_at_any_moment(environment, tmp_path, milliseconds):
    """Until this package's first import is done it is Python's own affair; from then on one line and 130."""
    words = ["--data", ROOT / "README.md", "-o", tmp_path / "run", "--device", "cpu", "--threads", 1]
    started = subprocess.Popen(
        [sys.executable, "-m", "pyllmc.train", *map(str, words)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(milliseconds / 1000)
    started.send_signal(signal.SIGINT)
    said = started.communicate(timeout=120)[1]
    if started.returncode == 130:
        assert re.fullmatch(r"\npyllmc\.train: interrupted.*\n", said), said
        return
    first = (PACKAGE / "__init__.py").read_text().partition("_startup")[0].count("\n") + 1
    ours = re.findall(rf'File "{re.escape(str(PACKAGE))}/(.*)", line (\d+)', said)
    later = [(name, line) for name, line in ours if name != "_startup.py" and (name != "__init__.py" or int(line) > first)]
    assert started.returncode in (1, -signal.SIGINT) and not later, said


@pytest.mark.parametrize("name", ["pyllmc", *(f"pyllmc.{name}" for name in COMMANDS)])
def test_a_python_without_the_packages_is_told_in_one_line(environment, name):
    """-S: no site-packages, as the system's Python has none in a shell whose virtual environment isn't active."""
    done = python(environment, "-S", "-m", name, "--help")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert re.match(rf"{re.escape(name)}: {re.escape(sys.executable)} has no package numpy: .*activate.* make\n", done.stderr)


def test_other_errors_and_other_programs_are_shown_as_ever(environment, tmp_path):
    done = python(environment, "-S", "-c", "import pyllmc")
    assert done.returncode == 1 and done.stderr.endswith("ModuleNotFoundError: No module named 'numpy'\n")
    (tmp_path / "numpy.py").write_text("1 / 0")
    done = python(environment, "-S", "-m", "pyllmc.train")
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n")

"""A side that is an llm.c trainer which the user built: a process for each block, and what it prints."""

import contextlib
import math
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError, InvalidArgument, LlmcError, Unavailable
from ..trainer_output import STEP, outside_samples
from .engine import Block

NEVER = 1_000_000  # an interval that no run reaches; 0 would divide by zero where validation is concerned
FIXED = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "grad_clip": 1.0}  # constants in llm.c's train_gpt2.cu
LOOKS_LIKE_A_STEP = re.compile(r"step +\d+/\d+")
TABLE = re.compile(r"\| (\S.*?) +\| (.*?) *\|?")
ROUNDED_MS = 0.005  # times are printed with two decimals
CLAIMS = {"batch": "micro batch size B", "seq_len": "sequence length T", "learning_rate": "learning rate (LR)",
          "weight_decay": "weight decay", "gelu_fusion": "gelu_fusion", "recompute": "recompute",
          "parameters": "num_parameters", "max_loss_z": "skip update lossz", "max_norm_z": "skip update gradz"}  # fmt: skip


@dataclass(frozen=True)
class Output:
    """What a trainer printed. steps: numbers from 1, total: of the run, losses: nats, ms: a step, settings: its
    parameter table as text."""

    steps: list
    total: int
    losses: list
    ms: list
    settings: dict


def read_output(text):
    """The Output in the text of an llm.c training run.

    Raises FormatError when a step's line is missing, repeated or of another form: a step that can't be read is
    never a zero. A sampled text is passed over, whatever stands in it.
    """
    steps, losses, ms, totals, settings = [], [], [], set(), {}
    for line in outside_samples(re.split(r"[\r\n]+", text)):  # progress of an evaluation ends in carriage returns
        if found := STEP.fullmatch(line):
            steps.append(int(found["number"]))
            totals.add(int(found["total"]))
            losses.append(float(found["loss"]))
            ms.append(float(found["ms"]))
            if ms[-1] == 0:
                raise FormatError(f"step {steps[-1]} took 0.00 ms: too short for the two decimals that llm.c prints")
        elif LOOKS_LIKE_A_STEP.match(line):
            raise FormatError(f"a step's line of unknown form: {line[:160]!r}")
        elif not steps and (found := TABLE.fullmatch(line)):
            settings[found[1]] = found[2]
    if not steps:
        raise FormatError("no step was printed")
    if len(totals) > 1 or steps != list(range(steps[0], steps[0] + len(steps))):
        raise FormatError(f"steps are missing or repeated: {', '.join(map(str, steps))[:160]}")
    if steps[-1] != max(totals):
        raise FormatError(f"the last step printed is {steps[-1]} of {max(totals)}")
    return Output(steps, max(totals), losses, ms, settings)


class ReferenceSide:
    """An llm.c trainer. Each block is a whole run of it from the same weights, without its first steps.

    flags: those that make its run equivalent to the side `base`, then extra, which win.
    """

    clock = "the trainer's own: device events around a step, without what lies between steps"
    resolution_ms = ROUNDED_MS

    def __init__(self, variant, workload, base, settle, extra=(), timeout=600.0, uuid=""):
        path = Path(variant.binary).expanduser()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise InvalidArgument(f"{variant.text}: {path} is no program that can be run")
        self.variant, self.label = variant, f"llm.c ({variant.binary})"
        self._path, self._workload, self._base, self._extra = path.resolve(), workload, base, list(extra)
        self._timeout, self._uuid = timeout, uuid
        self._dropped = max(1, settle)
        self.batch, self.seq_len, self.tokens = base.batch, base.seq_len, base.tokens
        self.losses, self.started_s, self.notes = {}, None, []
        self.facts = {}
        self.command = None

    def plan(self):
        """Unknown; taken to be what this engine needs for the same."""
        return self._base.plan()

    def open(self):
        pass

    def close(self):
        pass

    def block(self, steps):
        total = self._dropped + steps
        self.command = [str(self._path), *self._flags(total), *self._extra]
        output = self._read(self._run(), total)
        self.facts = facts_of(output.settings)
        for name in ("batch", "seq_len"):
            if self.facts.get(name, getattr(self, name)) != getattr(self, name):
                raise InvalidArgument(
                    f"{self._path} ran with {name} {self.facts[name]}, the other side has {getattr(self, name)}"
                )
        for update, loss in enumerate(output.losses):
            self.losses.setdefault(update, loss)
        timed = output.ms[self._dropped :]
        return Block(timed, math.fsum(timed) / len(timed))

    def _flags(self, total):
        settled, workload = self._base.facts, self._workload
        given = {
            "-i": workload.pattern, "-j": workload.pattern, "-e": workload.checkpoint(),
            "-b": self.batch, "-t": self.seq_len, "-d": self.tokens, "-x": total,
            "-l": settled["learning_rate"], "-k": "constant", "-u": 0, "-q": 1, "-c": settled["weight_decay"],
            "-sl": settled["max_loss_z"], "-sg": settled["max_norm_z"],
            "-v": NEVER, "-m": 1, "-s": 0, "-h": 0, "-n": 0, "-y": 0, "-a": 0,
            "-f": settled["tf32"], "-w": settled["master_weights"], "-ge": settled["gelu_fusion"],
            "-r": settled["recompute"], "-z": 0,
        }  # fmt: skip
        return [str(word) for pair in given.items() for word in pair]

    def _run(self):
        """All that the trainer prints. Raises Unavailable when it fails or doesn't end in time."""
        environment = dict(os.environ)
        if self._uuid:
            environment["CUDA_VISIBLE_DEVICES"] = self._uuid  # the same GPU, however either side counts them
        try:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environment, cwd=self._workload.folder, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"{self._path} can't be started: {error.strerror or error}") from None
        try:
            printed, _ = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self._path} did not end within {self._timeout:g} s and was stopped") from None
        finally:  # at a timeout or Ctrl-C it must not go on and hold the GPU, nor what it has started
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process.stdout.close()
        text = printed.decode(errors="replace")
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            raise Unavailable(f"{self._path} was killed by {name}{last_words(text)}")
        if process.returncode:
            raise Unavailable(f"{self._path} ended with exit status {process.returncode}{last_words(text)}")
        return text

    def _read(self, text, total):
        try:
            output = read_output(text)
        except FormatError as error:
            raise FormatError(f"the output of {self._path} can't be read: {error}{last_words(text)}") from None
        if (output.steps[0], output.total) != (1, total):
            raise LlmcError(
                f"{self._path} printed steps {output.steps[0]} to {output.total}, asked for were 1 to {total}"
            )
        return output


def facts_of(settings):
    """A side's facts from a trainer's parameter table, by the names of llmc_options and llmc_hyper."""
    facts = dict(FIXED)
    for name, title in CLAIMS.items():
        with contextlib.suppress(KeyError, ValueError):
            value = float(settings[title])
            facts[name] = int(value) if value == int(value) else value
    precision = settings.get("precision", "").lower()
    if precision:
        facts["precision"] = "fp32" if precision == "tf32" else precision
        facts["tf32"] = int(precision == "tf32")
    if "use_master_weights" in settings:
        facts["master_weights"] = int(settings["use_master_weights"] == "enabled")
    return facts


def last_words(text):
    """The end of an error message: the line that speaks of an error, or the last one."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    wrong = [line for line in lines if re.search(r"error|assert|usage|fault|not found", line, re.IGNORECASE)]
    wrong = [line for line in wrong if "HellaSwag" not in line]
    chosen = (wrong or lines)[-1:] if not wrong else wrong[:1]
    return f"; it says {chosen[0][:200]!r}" if chosen else "; it printed nothing"

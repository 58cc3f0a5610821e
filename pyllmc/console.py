"""What a run shows: a summary at the start, a bar or lines while it goes, texts, and a closing word."""

import math
import os
import sys
import time
import unicodedata

from tqdm import tqdm

from .callbacks import Callbacks

BAR_FORMAT = "{percentage:3.0f}% {bar} {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"
LINE_EVERY_S = 1.0  # without a terminal: at most one step line in this time


class Console(Callbacks):
    """Lines on stdout, and a progress bar on stderr where that is a terminal.

    tokenizer: to show samples as text; None shows ids. unigram: entropy to compare losses with, or None.
    """

    def __init__(self, tokenizer=None, unigram=None, shows_mfu=False):
        self._tokenizer, self._unigram, self._shows_mfu = tokenizer, unigram, shows_mfu
        self._bar, self._steps, self._last_line, self._gpu = None, 0, -math.inf, None

    def start(self, first_step, steps):
        """The run goes from `first_step` to `steps`."""
        self._steps = steps
        if has_size(sys.stderr):
            self._bar = tqdm(total=steps, initial=first_step, dynamic_ncols=True, leave=False, bar_format=BAR_FORMAT)

    def close(self):
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def line(self, text=""):
        """Print a line without disturbing the bar."""
        if self._bar is None:
            say(text)
        else:
            self._bar.write(encodable(text), file=sys.stdout)

    def on_step(self, report):
        self._gpu = report.gpu or self._gpu  # not read at every step; the last reading stays in sight
        text = step_text(report, self._shows_mfu, self._gpu)
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        now = time.monotonic()
        odd = report.skipped or not math.isfinite(report.loss)
        due = report.step == 0 or report.step + 1 == self._steps or now - self._last_line >= LINE_EVERY_S
        if odd or (self._bar is None and due):
            self.line(f"step {report.step + 1:>6}/{self._steps}  {text}")
            self._last_line = now

    def on_validation(self, step, loss):
        beside = "" if self._unigram is None else f"  (unigram entropy {self._unigram:.4f})"
        self.line(f"step {step:>6}/{self._steps}  validation loss {loss:.4f}{beside}")

    def on_evaluation(self, step, accuracy):
        self.line(f"step {step:>6}/{self._steps}  HellaSwag accuracy {accuracy:.4f}")

    def on_sample(self, step, ids):
        self.line(f"\n--- sample at step {step} ---\n{self._shown(ids)}\n---\n")

    def on_checkpoint(self, step, path):
        self.line(f"step {step:>6}/{self._steps}  saved {path}")

    def on_note(self, text):
        self.line(f"note: {text}")

    def _shown(self, ids):
        if self._tokenizer is None or max(ids, default=0) >= self._tokenizer.n_vocab:
            return " ".join(map(str, ids))
        text = self._tokenizer.decode(ids)
        return harmless(text)


def say(text):
    """Print on stdout, at once."""
    print(encodable(text), flush=True)


def encodable(text):
    """`text` with question marks for what the encoding of stdout lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def one_line(text):
    """`text` without control characters and halves of letters, which neither a terminal nor a font can show."""
    return "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in str(text))


def harmless(text):
    """`text` without the control characters that a young model draws too, and a terminal would obey."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\N{MIDDLE DOT}" for c in text)


def has_size(stream):
    """Whether the stream is a terminal on which a bar can be drawn; some automata offer one of size 0."""
    try:
        return stream.isatty() and min(os.get_terminal_size(stream.fileno())) > 0
    except (OSError, ValueError):
        return False


def step_text(report, shows_mfu=False, gpu=None):
    """loss, norm, learning rate and speed of a StepReport, and a GpuReading if there is one, in one line."""
    parts = [
        f"loss {report.loss:.4f}", f"norm {report.norm:.2f}", f"lr {report.lr:.2e}",
        f"{report.ms:.1f} ms", f"{short(report.tok_s)} tok/s",
    ]  # fmt: skip
    if report.mfu is not None:
        parts.append(f"MFU {report.mfu:.1%}" + (" (the stated peak is too low)" if report.mfu > 1 else ""))
    elif shows_mfu:
        parts.append("MFU n/a")
    if gpu is not None:
        parts.append(gpu_text(gpu))
    if report.skipped:
        parts.append(f"SKIPPED: {report.skipped}")
    return "  ".join(parts)


def gpu_text(reading):
    """Watts, clock and temperature of a GpuReading."""
    units = zip(reading, ("W", "MHz", "\N{DEGREE SIGN}C"), strict=True)
    return " ".join(f"{unit} n/a" if value is None else f"{value:.0f} {unit}" for value, unit in units)


def short(number):
    """1234567 as 1.2M."""
    if not math.isfinite(number):
        return "n/a"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"


def count(number, noun):
    """1 line, 2 lines."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(rows):
    """(label, text) rows as aligned lines."""
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)

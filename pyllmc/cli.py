"""Command lines made from tables: one row holds an option's names, kind, defaults and help."""

import argparse
import sys
from dataclasses import dataclass

from .errors import InvalidArgument, near


@dataclass(frozen=True)
class Option:
    """One row. name: attribute of the parsed result. flags: short first; none: words without a flag, one at least,
    which come as a list. default: what holds when it isn't given; None says that something further in (the
    engine, the model) decides, and `decided_by` says what.
    small, gpu: the defaults of the small run instead, on a CPU and on a GPU; `gpu_by` says how the one on a
    GPU is found, the value then being None. kind: converts the text, or raises InvalidArgument with what was
    expected; bool options take 0 or 1; a `switch` takes nothing; `many` may be repeated and gives a list."""

    name: str
    flags: str
    help: str
    kind: type = str
    default: object = None
    decided_by: str = ""
    small: object = None
    gpu: object = None
    gpu_by: str = ""
    metavar: str | None = None
    switch: bool = False
    many: bool = False

    @property
    def key(self):
        """Its name in a file of options: the long flag without the dashes."""
        return self.flags.split()[-1].lstrip("-")

    def default_of(self, kind):
        """The default in a run of this kind (see Parser.read)."""
        if kind == "gpu" and self.gpu_by:
            return None
        special = {"small": self.small, "gpu": self.gpu}.get(kind)
        return self.default if special is None else special

    def help_text(self):
        default = self.decided_by or self.default
        if isinstance(default, bool):
            default = int(default)
        parts = [] if default in (None, "") or self.switch else [f"default: {default}"]
        if self.small is not None:
            parts.append(f"small run: {self.small}")
        if self.gpu is not None or self.gpu_by:
            parts.append(f"small run on a GPU: {self.gpu_by or self.gpu}")
        text = f"{self.help} ({'; '.join(parts)})" if parts else self.help
        return text.replace("%", "%%")


class Parser(argparse.ArgumentParser):
    """argparse over {group title: rows}. Names a near flag for a misspelt one."""

    def __init__(self, groups, **keywords):
        super().__init__(allow_abbrev=False, add_help=False, **keywords)
        self._rows = [row for rows in groups.values() for row in rows]
        taken = {flag for row in self._rows for flag in row.flags.split()}  # -h is HellaSwag in llm.c
        self.add_argument(*(flag for flag in ("-h", "--help") if flag not in taken), action="help", help="show this text and exit")
        for title, rows in groups.items():
            group = self.add_argument_group(title)
            for row in rows:
                # SUPPRESS leaves out what wasn't given, so that defaults can depend on what was
                common = {"dest": row.name, "default": argparse.SUPPRESS, "help": row.help_text()}
                if not row.flags:
                    group.add_argument(nargs="+", metavar=row.metavar, type=converter(row.kind), **common)
                elif row.switch:
                    group.add_argument(*row.flags.split(), action="store_true", **common)
                else:
                    kind = zero_or_one if row.kind is bool else converter(row.kind)
                    metavar = row.metavar or {int: "N", float: "X", bool: "0|1"}.get(row.kind, "TEXT")
                    action = "append" if row.many else "store"
                    group.add_argument(*row.flags.split(), action=action, type=kind, metavar=metavar, **common)

    def error(self, message):
        """One sentence: argparse would put the usage before it, and of this many options nobody reads that."""
        self.exit(2, f"{self.prog.removeprefix('python -m ')}: {message} (--help lists the options)\n")

    def read(self, argv=None, kind_of=None, further=None):
        """The options as a namespace. further: tells from a namespace of what was given what else is, {name: value},
        where the command line doesn't say. kind_of: tells from all of that which defaults hold, those of the
        "small" run, of "gpu", the small run there, or "". The namespace has that as `kind`, and the names that
        were given as `given`."""
        words = sys.argv[1:] if argv is None else argv
        self._check_flags(words)
        given, unknown = self.parse_known_args(words)
        for row in self._rows:
            if not row.flags:  # argparse takes such words from one place only: RUN -o FILE RUN
                getattr(given, row.name).extend(row.kind(word) for word in unknown if not word.startswith("-"))
                unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            self._unknown(unknown[0], words)
        if further:
            given = argparse.Namespace(**{**further(given), **vars(given)})
        kind = kind_of(given) if kind_of else ""
        filled = argparse.Namespace(kind=kind, given=frozenset(vars(given)))
        for row in self._rows:
            setattr(filled, row.name, getattr(given, row.name, False if row.switch else row.default_of(kind)))
        return filled

    def _check_flags(self, words):
        """A short flag is one whole word, as in llm.c: argparse would take -lr for -l with the value "r"."""
        flags = {"-h", "--help", *self._flags()}
        for word in words:
            if word == "--":
                return
            is_flag = word[:1] == "-" and word[1:2].isalpha() and " " not in word  # as argparse sees it
            if is_flag and word.split("=")[0] not in flags:
                self._unknown(word, words)

    def _unknown(self, word, words):
        if word.startswith("-"):
            hint = near(word, self._flags())
        elif not self._rows:
            hint = ""
        elif word == words[0]:
            row = self._rows[0]
            hint = f"an option before it says what it is, such as {row.flags.split()[-1]} {row.metavar}"
        else:
            hint = "a pattern needs quotes, or the shell makes several words of it"
        self.error(f"unknown argument {word!r}" + (f": {hint}" if hint else ""))

    def _flags(self):
        return [flag for row in self._rows for flag in row.flags.split()]


def converter(kind):
    """`kind` for argparse, which shows the words of no other exception than its own."""

    def convert(text):
        try:
            return kind(text)
        except InvalidArgument as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except ValueError:
            wanted = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}") from None

    return convert


def zero_or_one(text):
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"expected 0 or 1, got {text!r}")
    return text == "1"

"""Command line of the profiler: python -m pyllmc.profile"""

import os
import sys
from pathlib import Path

from tqdm import tqdm

from .. import _native
from ..cli import Parser
from ..config import GPT2Config
from ..console import has_size
from ..errors import InvalidArgument
from ..exits import status_of
from ..named_model import named_model
from ..settings import Settings
from ..train import SHAPE as SMALL_SHAPE
from ..train import unused_folder
from ..train_options import pick
from ..vocabulary import BYTES_VOCAB
from . import document, report
from .draw import draw_all, write_all
from .options import BESIDE_DRAW, ENGINE_FIELDS, GROUPS, SHAPE
from .session import Session, measure

PROGRAM = "pyllmc.profile"
DESCRIPTION = """Show where a training step's time and memory go: a timeline of its lanes, times of ops (with
--kernels of kernels) against what the device can do at best, and the memory plan. Random tokens, random weights
unless -e names weights. Exit status: 0 done; 2 bad input; 130 interrupted; 141 nobody reads the output."""


def main(argv=None):
    """Profile as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog=f"python -m {PROGRAM}", description=DESCRIPTION)
    return status_of(PROGRAM, lambda: run(parser.read(argv)), "interrupted; nothing was written")


def run(args):
    """Measure or draw, write, print. Raises LlmcError or OSError for what can't be."""
    if args.draw is not None:
        beside = sorted(args.given - BESIDE_DRAW)
        if beside:
            raise InvalidArgument(f"--draw measures nothing, so {beside[0]!r} has no meaning beside it")
        profile = document.load(args.draw)
        folder = Path(args.output or Path(args.draw).parent)
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths, notes = draw_all(profile, folder)
    else:
        name, config, weights = chosen_model(args)
        folder = Path(args.output or unused_folder(name, "profiles"))
        check_folder(folder)
        session = session_of(args, name, config, weights)
        rounds = session.rounds(args.kernels)
        with tqdm(total=rounds, leave=False, dynamic_ncols=True, unit="step", disable=not has_size(sys.stderr)) as bar:
            profile = measure(session, args.kernels, args.ceilings, bar.update)
        paths, notes = write_all(profile, folder)
    if args.json:
        print(document.to_json(profile))
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        return 0
    print(report.text(profile))
    print("\n".join(["", *(f"note: {note}" for note in notes), f"written to {folder}: {', '.join(p.name for p in paths)}"]))
    return 0


def chosen_model(args):
    """(name, config, Weights or None) that the arguments name."""
    shape = pick(args, SHAPE)
    library, _, _ = _native.choose(args.device)
    if args.model is None and library.backend == "cpu":
        config = GPT2Config(**{**SMALL_SHAPE, "vocab": BYTES_VOCAB, "context": max(args.seq_len, 1), **shape})
        return f"L{config.layers}C{config.channels}", config, None
    if args.model is None:
        return named_model("d12", shape)
    return named_model(args.model, shape)


def check_folder(folder):
    """Raise InvalidArgument, before anything is measured, where no folder can be made or written to."""
    existing = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    if not existing.is_dir():
        raise InvalidArgument(f"-o {folder}: {existing} is a file, expected a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InvalidArgument(f"-o {folder}: {existing} can't be written to")


def session_of(args, name, config, weights):
    """The Session that the arguments describe, checked."""
    on_cpu = _native.choose(args.device)[0].backend == "cpu"
    warmup = (2 if on_cpu else 10) if args.warmup is None else args.warmup
    for flag, value, least in (("-x", args.steps, 1), ("--warmup", warmup, 0), ("-b", args.batch, 1), ("-t", args.seq_len, 1)):
        if value < least:
            raise InvalidArgument(f"{flag} must be at least {least}, got {value}")
    seq_len = args.seq_len
    if "seq_len" not in args.given:
        seq_len = min(seq_len, config.context)
    elif seq_len > config.context:
        raise InvalidArgument(f"rows of {seq_len} (-t) don't fit the model, whose longest sequence is {config.context}")
    where = {"batch": args.batch, "seq_len": seq_len, "device": args.device, **pick(args, ENGINE_FIELDS)}
    micro_steps = Settings(total_tokens=args.total_tokens).micro_batches(args.batch, seq_len, 1)
    return Session(name, config, weights, where, micro_steps, args.steps, warmup)


if __name__ == "__main__":
    sys.exit(main())

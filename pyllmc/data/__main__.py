"""Command line of data preparation: python -m pyllmc.data"""

import contextlib
import os
import shlex
import sys
from pathlib import Path

from tqdm import tqdm

from ..cli import Parser
from ..console import count, has_size, say, table
from ..errors import InvalidArgument, nearest
from ..exits import BAD_INPUT, status_of
from ..tokenizer import load_tokenizer
from .catalogue import SETS, listing, where_to_get
from .describe import describe
from .hellaswag import convert
from .options import groups_of
from .preparation import prepare

PROGRAM = "pyllmc.data"
SMALL_BATCH = 4 * 1024  # llm.c's default B x T
FLAG = {"train": "-i", "val": "-j"}  # of pyllmc.train
COMMANDS = {
    "prepare": "text, JSONL, Parquet or folders of them to token shards",
    **{name: f"the same for this set: {known.what}" for name, known in SETS.items() if name != "hellaswag"},
    "hellaswag": "HellaSwag's JSONL to the evaluation file",
    "inspect": "what is in a shard, an evaluation, a tokenizer or a checkpoint",
    "list": "the usual data sets: what they are, where to get them, what to run",
}
STATUS = "Exit status: 0 done; 2 bad input; 130 interrupted; 141 nobody reads the output."
DESCRIPTIONS = {
    "prepare": "Tokenize files into llm.c's shards NAME_train_000001.bin … and NAME_val_000000.bin …, an end-of-text "
               "token before each document. Shards appear when they are complete; the same command goes on after an "
               "interruption. The bytes don't depend on the number of processes. ",
    "hellaswag": "Make the evaluation file of a trainer from the public JSONL. ",
    "inspect": "Show header, numbers and the first text of llm.c's files. ",
    "list": "List the usual data sets. ",
}  # fmt: skip


def main(argv=None):
    """Do as the arguments say; returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    return status_of(PROGRAM, lambda: act(argv), "interrupted; files are complete, and the same command goes on")


def act(argv):
    if not argv or argv[0] in ("-h", "--help"):
        say(usage())
        return 0 if argv else BAD_INPUT
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        raise InvalidArgument(f"unknown command {command!r}: {nearest(command, COMMANDS)}")
    if command in SETS and not rest:
        raise InvalidArgument(where_to_get(command))
    return ACTIONS.get(command, run_prepare)(parser_of(command).read(rest), command)


def usage():
    rows = table([(f"  {name}", text) for name, text in COMMANDS.items()])
    return f"usage: python -m {PROGRAM} COMMAND … (COMMAND --help lists its options)\n\n{rows}\n\n{STATUS}"


def parser_of(command):
    text = DESCRIPTIONS.get(command) or f"{SETS[command].what}. From {SETS[command].where}. {DESCRIPTIONS['prepare']}"
    description = (text + STATUS).replace("%", "%%")
    return Parser(groups_of(command), prog=f"python -m {PROGRAM} {command}", description=description)


def run_prepare(args, command):
    if {"val", "val_tokens"} <= args.given:
        raise InvalidArgument("--val (a fraction) and --val-tokens (a number) exclude each other")
    val_tokens = None if "val" in args.given else args.val_tokens
    with bar() as show:
        made = prepare(
            args.inputs, args.output, tokenizer=args.tokenizer, shard_size=args.shard_size, val=args.val,
            val_tokens=val_tokens, separator=args.separator, text_field=args.text_field, name=args.name,
            processes=args.processes, skip_bad=args.skip_bad, force=args.force, progress=show,
        )  # fmt: skip
    say(table(summary_of(made)))
    if made.reused:
        say("note: all of it was there already")
    if made.left_out:
        say(f"note: {count(made.left_out, 'file')} of other kinds left out")
    for split in ("train", "val"):
        if 0 < made.tokens(split) <= SMALL_BATCH:
            say(f"note: {split} has {made.tokens(split)} tokens, so that B x T may be {made.tokens(split) - 1} at most")
    words = [f"{FLAG[split]} {shlex.quote(pattern)}" for split, pattern in made.patterns().items()]
    if args.tokenizer != "gpt2":  # which is taken where shards alone are named: they don't tell
        words.append(f"--tokenizer {shlex.quote(args.tokenizer)}")
    say(f"train:  python -m pyllmc.train {' '.join(words)}")
    return 0


def summary_of(prepared):
    """(label, text) rows about what `prepare` made."""
    skipped = [f"{count(prepared.empty, 'empty one')} left out"] if prepared.empty else []
    skipped += [f"{prepared.bad} that couldn't be read"] if prepared.bad else []
    rows = [("documents", ", ".join([f"{prepared.documents:,}", *skipped]))]
    for split, counts in prepared.counts.items():
        if counts:
            names = list(counts)
            span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            size = f"{prepared.tokens(split):,} tokens in {count(len(names), 'shard')}"
            rows.append((split, f"{size}: {prepared.folder / span}"))
    return rows


def run_hellaswag(args, command):
    if len(args.inputs) != 1:
        raise InvalidArgument(f"one JSONL file makes one evaluation, got {len(args.inputs)}")
    (path,) = args.inputs
    if not os.path.exists(path):
        raise InvalidArgument(f"{path}: no such file: {where_to_get('hellaswag')}")
    if os.path.isdir(path):
        raise InvalidArgument(f"{path}: a folder, expected a file")
    output = Path(args.output or Path(path).with_suffix(".bin"))
    if output.is_dir() or not output.parent.is_dir():
        found = "a folder" if output.is_dir() else "there is no such folder"
        raise InvalidArgument(f"-o {output}: {found}, expected a file")
    if output.exists() and os.path.samefile(output, path):
        raise InvalidArgument(f"-o {output}: that is the input")
    tokenizer = load_tokenizer(args.tokenizer)
    done, total = 0, os.path.getsize(path)
    with bar() as show:

        def advance(size):
            nonlocal done
            done += size
            show(done, total)

        examples, bad = convert(path, output, tokenizer, args.skip_bad, advance)
    left_out = f", {count(bad, 'line')} left out" if bad else ""
    say(f"{count(examples, 'example')}{left_out}: {output}")
    return 0


def run_inspect(args, command):
    for number, path in enumerate(args.inputs):
        done, total = 0, os.path.getsize(path)
        with bar() as show:

            def advance(size, show=show, total=total):
                nonlocal done
                done += size
                show(done, total)

            rows = describe(path, args.tokenizer, args.tokens, advance)
        say(("\n" if number else "") + table(rows))
    return 0


def run_list(args, command):
    say(listing())
    return 0


ACTIONS = {"hellaswag": run_hellaswag, "inspect": run_inspect, "list": run_list}


@contextlib.contextmanager
def bar():
    """A function (bytes done, bytes in all) that moves a bar where stderr is a terminal."""
    if not has_size(sys.stderr):
        yield lambda done, total: None
        return
    with tqdm(unit="B", unit_scale=True, leave=False, dynamic_ncols=True, total=0) as shown:

        def show(done, total):
            if total != shown.total:  # the first call tells where the work begins, after an interruption not at 0
                shown.reset(total)
                shown.initial = shown.n = done
            shown.update(done - shown.n)

        yield show


if __name__ == "__main__":
    sys.exit(main())

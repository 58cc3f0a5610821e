"""Text from a trained model: python -m pyllmc.generate"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm

from .cli import Parser
from .console import count, has_size, say, short
from .errors import InvalidArgument, Unavailable
from .exits import INTERRUPTED, interrupt_held, status_of
from .generate_options import ENGINE_FIELDS, GROUPS, MAX_SEED
from .generation import SideBySide
from .sample_text import Output, Sample, Timer
from .train_options import pick
from .vocabulary import choose_vocabulary
from .weights import find_weights, rows_that_fit

PROGRAM = "pyllmc.generate"
ROUND_TO = 64  # the engine's row is a multiple of this, or the whole context
DESCRIPTION = """Draw text from a trained model and show it as it comes. Exit status: 0 done; 2 bad input;
130 interrupted, what was drawn being shown; 141 nobody reads the output."""


def main(argv=None):
    """Generate as the arguments say; returns the exit status."""
    usage = f"python -m {PROGRAM} MODEL [PROMPT] [options]"
    parser = Parser(GROUPS, prog=f"python -m {PROGRAM}", usage=usage, description=DESCRIPTION)
    return status_of(PROGRAM, lambda: run(parser.read(argv)), "interrupted")


def run(args):
    """From the arguments to the last text; the exit status. Raises LlmcError or OSError for what can't be."""
    name, given = split_words(args.words)
    if args.seed + args.samples - 1 > MAX_SEED:
        raise InvalidArgument(f"--seed {args.seed} leaves no seeds for {args.samples} samples: the last is {MAX_SEED}")
    weights = find_weights(name)
    config = weights.config
    vocabulary, missing = choose_vocabulary(args.tokenizer, config.vocab, weights.folder)
    if args.stop and vocabulary.name == "ids" and not missing:
        raise InvalidArgument("--stop looks for text, and ids are none: --stop-id takes a token")
    if max(args.stop_id or [0]) >= config.vocab:
        raise InvalidArgument(f"--stop-id {max(args.stop_id)} is outside the model's vocabulary of {config.vocab}")
    raw, where = read_prompt(given, args.prompt_file)
    encoded, trouble = ids_of(vocabulary, raw, where, args.tokenizer == "auto", missing)
    if max(encoded, default=0) >= config.vocab:
        raise InvalidArgument(
            f"the tokenizer {vocabulary.name} makes token {max(encoded)} of {where}, beyond the model's vocabulary of "
            f"{config.vocab}: --tokenizer names the one it was trained with"
        )
    prompt = encoded or vocabulary.beginning()
    if args.stop and missing:
        trouble.append("--stop texts are not looked for among ids: --stop-id takes a token")
        args.stop = None
    T = min(config.context, -(-(len(prompt) + args.max_new) // ROUND_TO) * ROUND_TO)
    for note in (*weights.notes, *trouble, *cut_note(prompt, T)):
        remark(f"note: {note}")
    where = {"seq_len": T, "device": args.device, "train": 0, "tune": 0, "head_chunks": T, **pick(args, ENGINE_FIELDS)}
    began = time.perf_counter()
    with weights.load(batch=rows_that_fit(config, where, args.samples), **where) as model:
        load_s = time.perf_counter() - began
        if not args.quiet:
            remark(
                f"{weights.path.name}: {short(config.num_params)} parameters on {model.device}, tokenizer "
                f"{vocabulary.name}, prompt of {count(len(prompt), 'token')}"
            )
        for note in model.notes():
            remark(f"note: {note}")
        return draw_all(args, model, vocabulary, prompt, encoded, load_s)


def split_words(words):
    """(name of the model, prompt or None)."""
    if len(words) > 2:
        raise InvalidArgument(f"{len(words) - 1} words follow the model: a prompt of several words needs quotes")
    return words[0], words[1] if len(words) == 2 else None


def read_prompt(given, file):
    """(bytes of the prompt, where they are from for messages)."""
    if given is not None and file is not None:
        raise InvalidArgument("a prompt and --prompt-file exclude each other")
    if given is not None:
        return os.fsencode(given), "the prompt"
    if file is not None and file != "-":
        return without_line_break(Path(file).read_bytes()), file
    if sys.stdin is None or (file is None and sys.stdin.isatty()):
        return b"", "the prompt"
    return without_line_break(sys.stdin.buffer.read()), "stdin"


def without_line_break(raw):
    """`raw` without the line break that echo and editors put at the end."""
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def ids_of(vocabulary, raw, where, auto, missing):
    """(ids of the prompt, remarks). A prompt that needs a tokenizer which can't be had is left out with a remark,
    if the tokenizer was to be found automatically."""
    trouble = [f"ids are shown for tokens: {missing}"] if missing else []
    try:
        return vocabulary.encode(raw, where), trouble
    except InvalidArgument:
        if not missing:
            raise
    except Unavailable as error:
        if not auto:
            raise
        trouble.append(str(error))
    trouble.append(f"{where} can't be encoded without a tokenizer: it is left out")
    return [], trouble


def cut_note(prompt, T):
    if len(prompt) > T:
        yield f"the prompt has {len(prompt)} tokens, of which the model reads the last {T}, its context"


def draw_all(args, model, vocabulary, prompt, encoded, load_s):
    """All samples, as many at a time as the model has rows; the exit status.

    prompt: ids that the model reads; encoded: those that the user gave, if any.
    """
    output, timer, samples, interrupted = Output(), Timer(), [], False
    stops = {*(args.stop_id or ()), *(() if args.past_end or vocabulary.end is None else (vocabulary.end,))}
    with bar_of(args) as advance, contextlib.ExitStack() as stack:
        stack.callback(output.end_line)
        for first in range(0, args.samples, model.batch):
            seeds = range(args.seed + first, args.seed + min(first + model.batch, args.samples))
            group = [Sample(seed, vocabulary, args.stop or (), encoded, args.echo) for seed in seeds]
            rows = SideBySide(
                model, prompt, args.max_new, seeds, args.temperature, args.top_k, args.top_p, list(stops) or None
            )
            samples += group
            waiting, interrupted = draw_group(args, output, group, rows, timer, advance)
            for row, sample in enumerate(group):
                if row:
                    show_beginning(args, output, sample)
                    output.write(waiting[row])
                output.write(sample.finish(why_ended(rows, row, sample, vocabulary, interrupted)))
            output.end_line()
            if interrupted:
                break
    if args.json:
        say(json.dumps(report(prompt, samples, timer, load_s)))
    drawn = sum(len(sample.ids) for sample in samples)
    if interrupted:
        remark(f"{PROGRAM}: interrupted after {count(drawn, 'token')}")
    elif not args.quiet:
        remark(timer.summary(drawn))
    return INTERRUPTED if interrupted else 0


def draw_group(args, output, group, rows, timer, advance):
    """Draw the samples of a group side by side. The first is shown as it comes, the others' texts are returned,
    with whether Ctrl-C ended it."""
    waiting = [""] * len(group)
    try:
        with interrupt_held() as interrupted:  # else it may come between an id and its text
            show_beginning(args, output, group[0])
            for drawn in timer.rounds(rows):
                for row, token in drawn.items():
                    piece = group[row].push(token)
                    if row == 0:
                        output.write(piece)
                    else:
                        waiting[row] += piece
                    if group[row].stop.found is not None:
                        rows.end(row)
                advance(len(drawn))
                if interrupted():
                    return waiting, True
    except KeyboardInterrupt:
        return waiting, True
    return waiting, False


def show_beginning(args, output, sample):
    """What tells several samples apart, and the prompt if it is to be echoed."""
    if args.samples > 1:
        number = sample.seed - args.seed + 1
        output.end_line()
        output.write(("\n" if number > 1 else "") + f"--- sample {number} of {args.samples}, seed {sample.seed} ---\n")
    output.write(sample.before)


def why_ended(rows, row, sample, vocabulary, interrupted):
    if sample.stop.found is not None:
        return "stop"
    if row in rows.stopped:
        return "end_of_text" if rows.stopped[row] == vocabulary.end else "stop_id"
    return "interrupted" if interrupted else "max_new"


def report(prompt, samples, timer, load_s):
    """What --json prints. ids: all that were drawn; text: what was shown of them, up to a stop text."""
    texts = [
        {"seed": s.seed, "ids": s.ids, "text": s.text, "ended_by": s.ended, "stop": s.stop.found} for s in samples
    ]
    times = {"load_s": load_s, "prompt_s": timer.prompt_s, "draw_s": timer.draw_s, "tok_s": timer.tok_s}
    return {"prompt_ids": list(map(int, prompt)), "samples": texts, "timings": times}


@contextlib.contextmanager
def bar_of(args):
    """A function to call with the number of tokens drawn: moves a bar when the text itself goes elsewhere."""
    if args.quiet or has_size(sys.stdout) or not has_size(sys.stderr):
        yield lambda tokens: None
        return
    total = args.max_new * args.samples
    with tqdm(total=total, unit="token", leave=False, dynamic_ncols=True) as bar:
        yield bar.update


def remark(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

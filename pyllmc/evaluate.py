"""Loss, bits per byte and HellaSwag accuracy of a trained model: python -m pyllmc.evaluate"""

import contextlib
import json
import math
import os
import sys

from tqdm import tqdm

from .cli import Parser
from .console import count, has_size, one_line, say, short, table
from .errors import InvalidArgument, Unavailable
from .evaluate_options import GROUPS
from .evaluation import Questions, accuracy
from .exits import status_of
from .generate_options import ENGINE_FIELDS
from .loader import TokenLoader
from .shards import find_shards, open_shard
from .tokenizer import load_tokenizer
from .train_options import pick
from .validation import text_bytes, validate
from .vocabulary import guess_tokenizer, tokenizer_beside
from .weights import find_weights, rows_that_fit

PROGRAM = "pyllmc.evaluate"
MAX_LENGTH = 1024
ROUND_TO = 64  # rows of HellaSwag are short: the engine's are no longer than they need, in multiples of this
DESCRIPTION = """Measure a trained model: loss and bits per byte on token shards, accuracy on HellaSwag. Exit status: 0 done;
2 bad input; 130 interrupted; 141 nobody reads the output."""


def main(argv=None):
    """Measure as the arguments say; returns the exit status."""
    usage = f"python -m {PROGRAM} MODEL [--data PATTERN] [--hellaswag FILE] [options]"
    parser = Parser(GROUPS, prog=f"python -m {PROGRAM}", usage=usage, description=DESCRIPTION)
    return status_of(PROGRAM, lambda: run(parser.read(argv)), "interrupted")


def run(args):
    """From the arguments to the last number. Raises LlmcError or OSError for what can't be."""
    if len(args.words) > 1:
        raise InvalidArgument(f"one model at a time, got {len(args.words)}: a pattern needs quotes")
    if args.data is None and args.hellaswag is None:
        raise InvalidArgument("nothing to measure: --data names token shards, --hellaswag an evaluation file")
    if args.batches == 0:
        raise InvalidArgument("-m must be -1 (all) or at least 1, got 0")
    weights = find_weights(args.words[0])
    notes, found = list(weights.notes), {"model": os.fspath(weights.path)}
    questions = None
    if args.hellaswag is not None:  # read before anything is computed: it may be damaged
        questions = Questions(args.hellaswag, weights.config.context, weights.config.vocab)
        notes += questions.notes
    for note in notes:
        remark(note)
    say_rows = not args.json
    if say_rows:
        say(table([("model", one_line(f"{weights.path}: {short(weights.config.num_params)} parameters"))]))
    if args.data is not None:
        found |= on_shards(args, weights)
        if say_rows:
            say(table([("loss", loss_text(found))]))
    if questions is not None:
        found |= on_questions(args, weights, questions)
        if say_rows:
            say(table([("HellaSwag", f"accuracy {found['accuracy']:.4f} ({found['correct']} of {found['count']})")]))
    if args.json:
        say(json.dumps({name: plain(value) for name, value in found.items()}))
    return 0


def on_shards(args, weights):
    """The fields of a Validation, perplexity, and why there are no bits per byte."""
    config = weights.config
    smallest = min(map(tokens_of, find_shards(args.data)))
    T = args.seq_len or max(1, min(config.context, MAX_LENGTH, smallest - 1))
    if T > config.context:
        raise InvalidArgument(f"rows of {T} (-t) don't fit the model, whose longest sequence is {config.context}")
    lengths, missing = None, "left out as asked"
    if args.tokenizer != "none":
        tokenizer, missing = tokenizer_for(args.tokenizer, weights)
        lengths = tokenizer and text_bytes(tokenizer, config.vocab)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(open_model(args, weights, T, max(1, (smallest - 1) // T)))
        loader = stack.enter_context(TokenLoader(args.data, model.batch, T, vocab=config.vocab))
        batches = loader.num_batches if args.batches < 0 else min(args.batches, loader.num_batches)
        advance = stack.enter_context(bar("loss", batches, "batch"))
        measured = validate(model, loader, batches, lengths, advance)
    perplexity = math.exp(measured.loss) if measured.loss < 700 else math.inf
    return {**measured._asdict(), "perplexity": perplexity, "no_bits_per_byte": missing}


def on_questions(args, weights, questions):
    """The fields of an Accuracy."""
    longest = max(len(row) - 1 for question in questions for row in question.rows)
    T = min(weights.config.context, -(-longest // ROUND_TO) * ROUND_TO)
    rows = sum(len(question.rows) for question in questions)
    with open_model(args, weights, T, rows) as model, bar("HellaSwag", len(questions), "example") as advance:
        return accuracy(model, questions, advance)._asdict()


def open_model(args, weights, T, most):
    """The GPT2 for rows of T tokens, of which there are no more than `most`."""
    where = {"seq_len": T, "device": args.device, "train": 0, "tune": 0, **pick(args, ENGINE_FIELDS)}
    model = weights.load(batch=args.batch or rows_that_fit(weights.config, where, most), **where)
    for note in model.notes():
        remark(note)
    return model


def tokenizer_for(name, weights):
    """(Tokenizer or None, why there is none or None). Raises as load_tokenizer for one that was named."""
    if name != "auto":
        return load_tokenizer(name), None
    try:
        tokenizer = tokenizer_beside(weights.folder, weights.config.vocab)
    except Unavailable as error:
        return None, str(error)
    return (tokenizer, None) if tokenizer else guess_tokenizer(weights.config.vocab)


def tokens_of(path):
    with open_shard(path) as shard:
        return shard.tokens


def loss_text(found):
    parts = [f"{found['loss']:.4f} nats per token, perplexity {found['perplexity']:.4g}"]
    if found["bits_per_byte"] is None:
        parts.append(f"bits per byte n/a: {found['no_bits_per_byte']}")
    else:
        parts.append(f"{found['bits_per_byte']:.4f} bits per byte of {count(found['bytes'], 'byte')}")
    return f"{'; '.join(parts)}; {count(found['tokens'], 'token')}"


def plain(value):
    """JSON has no NaN and no infinity: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def bar(what, total, unit):
    """A function to call with what was done."""
    if not has_size(sys.stderr):
        yield lambda done: None
        return
    with tqdm(total=total, unit=unit, leave=False, desc=what, dynamic_ncols=True) as shown:
        yield shown.update


def remark(text):
    print(one_line(f"note: {text}"), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

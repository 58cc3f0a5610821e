"""Command line of the trainer: python -m pyllmc.train"""

import contextlib
import dataclasses
import functools
import os
import sys
import time
from pathlib import Path

from . import _native, flops, memory, options, peaks, ranks, run_state, small_run
from .checkpoint import peek_checkpoint
from .cli import Parser
from .config import GPT2_VOCAB, GPT2Config
from .console import Console, short, table
from .errors import InvalidArgument, LlmcError, OutOfMemory, sentence
from .exits import status_of
from .gpt2 import GPT2
from .inspection import c_options
from .loader import TokenLoader
from .loggers import Logger, backends_of
from .named_model import named_model, names_weights
from .options_file import read_options
from .run_options import RunOptions, how_to_go_on, in_force
from .rundir import JSON_LOG, check_unused
from .settings import Settings
from .shards import find_shards, open_shard
from .train_data import choose_data, entropy_of, keepers
from .train_options import (
    ENGINE_FIELDS,
    GROUPS,
    HYPER_FIELDS,
    REPLACES,
    ROWS,
    SETTINGS_FIELDS,
    SHAPE_FIELDS,
    is_small,
    pick,
    without_effect,
)
from .trainer import Trainer
from .vocabulary import guess_tokenizer
from .weights import find_weights

NOTHING_TO_DO = 3
# Of the model when -e names none
SHAPE = {"layers": 3, "heads": 4, "channels": 128}
GPU_SHAPE = {"layers": 12, "heads": 12, "channels": 768}
DESCRIPTION = """Train a GPT-2. Without arguments: a small model on the help texts that come with Python, for
about a minute. Exit status: 0 done; 2 bad input; 3 the resumed run was complete already; 130 interrupted;
141 nobody reads the output."""


def main(argv=None):
    """Train as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog="python -m pyllmc.train", description=DESCRIPTION)
    folders = [None]
    return status_of(
        "pyllmc.train", lambda: train(parser.read(argv, kind_of_run, in_file), folders.append),
        lambda: f"interrupted; {how_to_go_on(folders[-1])}", lambda: f"nobody reads the output; {how_to_go_on(folders[-1])}",
    )  # fmt: skip


def train(args, tell_folder):
    """One run, from data to picture. tell_folder: called with the run's folder once it is known. Raises LlmcError or
    OSError for what can't be."""
    ranks.check_alone(args.world, args.rank)
    if args.resume and args.output is None:
        raise InvalidArgument("-y 1 needs -o, the folder of the run to resume")
    if args.output is not None and not args.resume:
        check_unused(args.output)
    decide_hellaswag(args)
    backends = backends_of(args.log or ())
    Settings.checked({**settings_of(args), "run_dir": args.output})
    data = choose_data(args)
    name, config, weights = choose_model(args, data)
    folder = Path(args.output or unused_folder(name))
    tell_folder(folder)
    unigram = entropy_of(data.val or data.train)
    where = {
        "batch": args.batch, "seq_len": args.seq_len, "device": args.device, **pick(args, ENGINE_FIELDS),
    }  # fmt: skip
    if "seq_len" not in args.given:
        where["seq_len"] = min(args.seq_len, config.context)
    elif args.seq_len > config.context:
        raise InvalidArgument(
            f"rows of {args.seq_len} (-t) don't fit the model, whose longest sequence is {config.context}"
        )
    plan_of = planner(config, where)
    if args.kind == "gpu":
        fill_in(args, config, data, where, plan_of)
    settings = settings_of(args)
    level = resolved(where).recompute
    print(table([("memory", memory.summary(plan_of(where["batch"], level), level))]), flush=True)
    seeds = {} if args.seed is None else {"seed": args.seed}
    with contextlib.ExitStack() as stack:
        train_loader, val_loader = (
            loader and stack.enter_context(loader) for loader in open_loaders(args, data, config, where, seeds)
        )
        model = stack.enter_context(make_model(args, config, weights, where, plan_of))
        tokenizer, missing = data.tokenizer, data.missing
        if tokenizer is None and missing is None and args.sample_every:
            tokenizer, missing = guess_tokenizer(config.vocab)
        console = Console(tokenizer, unigram, shows_mfu=model.library.backend != "cpu")
        prompt = (tokenizer.eot,) if tokenizer and tokenizer.eot < config.vocab else None
        options_kept = RunOptions(folder, lambda: in_force(args, trainer), console.on_note)
        loggers = [Logger(backend, tokenizer, console.on_note) for backend in backends]
        listeners = [console, options_kept, *loggers, *keepers(data.tokenizer)]
        trainer = Trainer(
            model, train_loader, val_loader, callbacks=listeners, run_dir=folder,
            prompt=prompt, sample=seeds, **settings,
        )  # fmt: skip
        console.line(table(summary(model, name, data, trainer, unigram, folder)))
        console.line()
        for note in weights.notes if weights else ():
            console.on_note(note)
        if missing:
            console.on_note(f"samples are shown as ids: {missing}")
        if without_effect(args.given):
            console.on_note(without_effect(args.given))
        stack.callback(console.close)
        console.start(trainer.first_step, trainer.steps)
        result = trainer.run()
        console.close()
    if result.status != "finished":
        print(f"already at step {result.step} of {trainer.steps}: nothing to do (-x asks for more)")
        return NOTHING_TO_DO
    print(table(closing(result, folder)))
    if not args.no_plot:
        draw(folder, unigram)
    return 0


def in_file(given):
    """{name: value} of the options in the file that --config names, without those that the ones given replace."""
    if not hasattr(given, "config"):
        return {}
    replaced = {other for name, others in REPLACES.items() if hasattr(given, name) for other in others}
    found = read_options(given.config, [row for row in ROWS if row.name != "config"])
    return {name: value for name, value in found.items() if name not in replaced}


def kind_of_run(given):
    """Which defaults hold: "small", "gpu" for the small run on a GPU, or ""."""
    if not is_small(given):
        return ""
    return "gpu" if on_gpu(getattr(given, "device", "auto")) else "small"


def on_gpu(device):
    library, _, _ = _native.choose(device)
    return library.backend != "cpu"


def settings_of(args):
    """The keywords of Settings that the arguments give."""
    settings = {**pick(args, SETTINGS_FIELDS), "hyper": pick(args, HYPER_FIELDS)}
    settings["hellaswag"] = args.hellaswag_data if args.hellaswag else None
    return {**settings, "steps": None if args.steps == -1 else args.steps}


def decide_hellaswag(args):
    """Whether it is measured, into args: -h says so, without it a file that was named. Raises InvalidArgument when the
    file isn't there."""
    args.hellaswag = args.hellaswag if "hellaswag" in args.given else "hellaswag_data" in args.given
    if args.hellaswag and not os.path.isfile(args.hellaswag_data):
        raise InvalidArgument(
            f"no evaluation file {args.hellaswag_data} (-h 1): `python -m pyllmc.data hellaswag` makes one from the public "
            "JSONL, --hellaswag-data names another"
        )


def fill_in(args, config, data, where, plan_of):
    """Batch and length of the small run on a GPU, into args and where; what the user gave stays."""
    library, ordinal, _ = _native.choose(args.device)
    engine = resolved(where)
    kind = peaks.arithmetic(options.word_of("precision", engine.precision), engine.tf32)
    peak = peaks.peak_of(library.device_info(ordinal), kind, args.peak_tflops)
    counts = {pattern: shard_lengths(pattern) for pattern in (data.train, data.val) if pattern}
    chosen = small_run.choose(
        config, where["seq_len"], sum(counts[data.train]), min(map(min, counts.values())),
        lambda rows: plan_of(rows, engine.recompute), peak.tflops, args.batch, args.total_tokens,
    )  # fmt: skip
    for name, value in chosen.items():
        if name not in args.given:
            setattr(args, name, value)
    where["batch"] = args.batch


def planner(config, where):
    """A function from (batch, recompute) to the llmc_memory of the model that `where` describes otherwise."""

    @functools.cache
    def plan_of(batch, recompute):
        return GPT2.memory_plan(config, **{**where, "batch": batch, "recompute": recompute})

    return plan_of


def resolved(where):
    """The llmc_options of GPT2's arguments, C's defaults included."""
    given = dict(where)
    library, ordinal, _ = _native.choose(given.pop("device"))
    return c_options(library, ordinal, given)


def shard_lengths(pattern):
    """Tokens of each shard."""
    lengths = []
    for path in find_shards(pattern):
        with open_shard(path) as shard:
            lengths.append(shard.tokens)
    return lengths


def choose_model(args, data):
    """(name, config, Weights or None) of the model that the arguments name."""
    shape = pick(args, SHAPE_FIELDS)
    if args.resume:
        step, path, _ = run_state.find(args.output, args.resume_weights_only)
        if step is not None:
            config, _ = peek_checkpoint(path)
            check_same_model(args, config, shape)
            return Path(args.output).name, config, None
    if args.model is None:
        vocab = data.vocab or GPT2_VOCAB
        default = GPU_SHAPE if on_gpu(args.device) else SHAPE
        config = GPT2Config(**{**default, "vocab": vocab, "context": args.seq_len, **shape})
        return f"L{config.layers}C{config.channels}", config, None
    return named_model(args.model, shape)


def check_same_model(args, config, shape):
    """Raise InvalidArgument when -e or a shape option names another model than that of the run to resume."""
    wanted = {}
    if args.model is not None and os.path.exists(args.model):
        wanted = dataclasses.asdict(find_weights(args.model).config)
    elif args.model is not None and not names_weights(args.model):  # else it is gone, which does no harm now
        wanted = dataclasses.asdict(GPT2Config.from_descriptor(args.model))
    for name, value in {**wanted, **shape}.items():
        if value != getattr(config, name):
            raise InvalidArgument(
                f"the run in {args.output} has {name} {getattr(config, name)}, not {value}: it can only go on as it is"
            )


def make_model(args, config, weights, where, plan_of):
    """The model with its first weights; a resumed run brings its own later."""
    try:
        if weights is not None:
            return weights.load(**where)
        resuming = args.resume and run_state.find(args.output, args.resume_weights_only)[0] is not None
        seed = {} if args.seed is None else {"init_seed": args.seed}
        return GPT2.from_config(config, init="zeros" if resuming else "random", **seed, **where)
    except OutOfMemory as error:
        raise OutOfMemory(out_of_memory(error, where, plan_of)) from None


def out_of_memory(error, where, plan_of):
    """One sentence: needed, free, and the flags that would help."""
    level = resolved(where).recompute
    try:
        plan = plan_of(where["batch"], level)
    except LlmcError:
        return str(error)
    if plan.total <= plan.device_free:  # not the plan's fault: the engine knows more
        return str(error)
    advice = memory.what_fits(plan_of, where["batch"], level)
    return (
        f"out of memory: the model needs {memory.size(plan.total)}, the device has "
        f"{memory.size(plan.device_free)} free" + (f"; {advice}" if advice else "")
    )


def open_loaders(args, data, config, where, seeds):
    """(train loader, val loader or None)."""
    B, T = where["batch"] or 0, where["seq_len"] or 0
    if args.overfit:
        if data.val is None:
            raise InvalidArgument("-a 1 trains on a batch of the validation data: name it with -j")
        first = TokenLoader(data.val, B, T, vocab=config.vocab)
    else:
        first = TokenLoader(data.train, B, T, shuffle=True, vocab=config.vocab, **seeds)
    second = data.val and TokenLoader(data.val, B, T, vocab=config.vocab)
    return first, second


def unused_folder(name, parent="runs"):
    """parent/TIME-NAME, which doesn't exist yet."""
    stem = Path(parent, f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")
    choices = (stem.with_name(f"{stem.name}{ending}") for ending in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(folder for folder in choices if not folder.exists())


def summary(model, name, data, trainer, unigram, folder):
    """(label, text) rows: what is about to happen, and where."""
    config, info = model.config, model.device_info
    threads = f", {model.options.threads or info['multiprocessors']} threads" if model.device == "cpu" else ""
    precision = options.word_of("precision", model.options.precision)
    if run_state.keeps_master(model):
        precision += " with fp32 master weights"
    per_epoch = trainer.loader.num_batches / trainer.micro_batches
    rows = [
        ("device", f"{model.device}: {info['name']}{threads} ({model.device_reason})"),
        ("engine", model.library.build_info),
        ("model", f"{name}: {config.layers} layers, {config.heads} heads, {config.channels} channels, "
                  f"vocabulary {config.vocab}, context {config.context}; {short(config.num_params)} "
                  f"parameters, {precision}"),
        ("data", f"{data.label}; unigram entropy {unigram:.3f} nats" if unigram else data.label),
        ("steps", f"{trainer.first_step} to {trainer.steps}, {trainer.tokens_per_step} tokens each "
                  f"({trainer.micro_batches} x {model.batch} x {model.seq_len}), "
                  f"{trainer.steps / per_epoch:.2g} epochs"),
        ("rate", f"{trainer.schedule.name}, peak {trainer.schedule.lr:g}"),
        ("folder", str(folder)),
    ]  # fmt: skip
    if model.library.backend != "cpu" or trainer.settings.peak_tflops:
        rows.insert(-1, ("MFU", utilisation_text(config, model.seq_len, trainer.peak)))
    return rows


def utilisation_text(config, seq_len, peak):
    """What utilisation is measured against."""
    if not peak.tflops:
        return f"n/a: {peak.label}"
    count = flops.flops_per_token(config, seq_len)
    return f"against {peak.tflops:g} TFLOP/s ({peak.label}), {count / 1e9:.3g} GFLOP a token by 6 N + 6 L C T"


def closing(result, folder):
    """(label, text) rows at the end of a run."""
    val = "" if result.val_loss is None else f", validation {result.val_loss:.4f}"
    rows = [("loss", f"training {result.loss:.4f}{val}")]
    if result.accuracy is not None:
        rows.append(("HellaSwag", f"accuracy {result.accuracy:.4f}"))
    if result.skipped:
        rows.append(("skipped", f"{result.skipped} updates"))
    if result.host_share is not None:
        rows.append(("Python", f"{result.host_share:.2%} of the step time"))
    return [*rows, ("model", str(result.checkpoint)), ("logs", f"{folder / 'main.log'}, {folder / JSON_LOG}")]


def draw(folder, unigram):
    """The picture of the run; whatever fails there is a remark, for the run is done and saved."""
    try:
        from . import figures

        path = figures.draw_run(folder, unigram)
    except Exception as error:
        print(f"note: no picture was drawn: {type(error).__name__}: {sentence(error)}")
    else:
        print(f"picture: {path}")


if __name__ == "__main__":
    sys.exit(main())

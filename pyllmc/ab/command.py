"""Command line of the A/B: python -m pyllmc.ab"""

import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from tqdm import tqdm

from .. import _native, options
from ..checkpoint import peek_checkpoint
from ..cli import Parser
from ..config import GPT2Config
from ..console import has_size
from ..errors import InvalidArgument, LlmcError, OutOfMemory, Unavailable
from ..monitor import NOTHING, GpuMonitor
from ..train import BYTES_VOCAB, SHAPE
from . import measure, record, report, variants
from .conditions import command_line, conditions
from .engine import EngineSide, resolved
from .measure import Comparison
from .options import GROUPS
from .reference import ReferenceSide
from .workload import Workload

BAD_INPUT, INTERRUPTED, OUTPUT_CLOSED = 2, 128 + signal.SIGINT, 128 + signal.SIGPIPE
LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH = 16  # batches that are served again and again
DESCRIPTION = """Compare training step times: two or more settings of this engine, or this engine and an llm.c trainer.
Blocks of steps alternate; the verdict is faster, slower, or no difference that so many rounds could see.
Exit status: 0 measured, whoever won; 2 bad input; 130 interrupted (what was measured is written); 141 nobody reads the output."""


def main(argv=None):
    """Measure as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog="python -m pyllmc.ab", description=DESCRIPTION)
    try:
        args = parser.read(argv)
        if args.draw is not None:
            return redraw(args)
        return compare(args, command_line(argv))
    except KeyboardInterrupt:
        print("\npyllmc.ab: interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        print("pyllmc.ab: nobody reads the output", file=sys.stderr)
        return OUTPUT_CLOSED
    except (LlmcError, OSError) as error:
        print(f"pyllmc.ab: {error}", file=sys.stderr)
        return BAD_INPUT


def redraw(args):
    """The picture of a JSON file, again."""
    found = record.read(args.draw)
    try:
        from . import picture
    except ImportError as error:
        raise Unavailable(f"--draw needs matplotlib: {error}") from None
    try:
        print(f"picture: {picture.draw(args.draw, found)}")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"{args.draw}: not a whole result of pyllmc.ab ({type(error).__name__}: {error})") from None
    return 0


def compare(args, command):
    """One run, from arguments to files. Raises LlmcError or OSError for what can't be."""
    check(args)
    base = variants.parse_variant(args.a)
    if base.binary:
        raise InvalidArgument("--a is a side of this engine, whose settings the reference takes over: give the binary to --b")
    others = [variants.parse_variant(text) for text in args.b or []]
    swept, points = None, [{}]
    if args.sweep is not None:
        swept, values = variants.parse_sweep(args.sweep)
        points = [{swept: value} for value in values]
        check_sweep(swept, [base, *others])
    library, ordinal, _ = _native.choose(args.device, base.library)
    name, config, source = choose_model(args, library.backend)
    where = {"device": args.device, **shape(args, config, library.backend)}
    output = Path(args.output or unused_file(name))
    check_output(output)
    notes, comparisons, stopped = [], [], None
    if args.each_switch:
        others += switches(library.backend, where, base)
    if len(others) > len(LETTERS):
        raise InvalidArgument(f"{len(others)} sides to compare with A, at most {len(LETTERS)} can be")
    with contextlib.ExitStack() as stack:
        sizes = [resolved({**where, **point, **side.options}) for point in points for side in (base, *others)]
        most = max(1, *(size.batch * size.seq_len for size in sizes))
        engine = resolved({**where, **base.options, **({"library": base.library} if base.library else {})})
        dtype = options.word_of("precision", engine.precision)
        shown = max(LENGTH, args.steps + max(1, args.settle)) if any(side.binary for side in others) else LENGTH
        work = stack.enter_context(Workload(config, source, args.train, args.lr, shown, most, dtype))
        if any(side.binary for side in others):
            work.checkpoint()
        for number, point in enumerate(points):
            comparisons += prepare(args, point, number, base, others, work, {**where, **point}, library, notes)
        if not comparisons:
            raise OutOfMemory("nothing is left to measure: " + "; ".join(notes))
        monitor = None
        info = library.device_info(ordinal)
        if library.backend != "cpu":
            monitor = stack.enter_context(GpuMonitor(info["uuid"]))
            monitor.first()
        found = conditions(library, ordinal, command)
        try:
            run_all(args, comparisons, monitor)
        except KeyboardInterrupt:
            stopped = "interrupted"
            if not any(comparison.blocks for comparison in comparisons):
                raise
        except (LlmcError, OSError) as error:
            stopped = str(error)
            if not any(comparison.rounds() for comparison in comparisons):
                raise
        finally:
            for comparison in comparisons:
                for side in comparison.sides.values():
                    side.close()
        described = {
            "model": name, "parameters": config.num_params, "batch": where["batch"], "seq_len": where["seq_len"],
            "data": args.train or "random tokens, the same for all sides", "learning_rate": args.lr,
            "sweep": None if points == [{}] else f"{swept}={','.join(str(point[swept]) for point in points)}",
            **{key: getattr(args, key) for key in ("rounds", "steps", "settle", "warmup", "seed", "fresh")},
        }  # fmt: skip
    result = record.build(comparisons, described, found, notes, stopped)
    finish(args, output, result)
    if stopped and stopped != "interrupted":
        print(f"pyllmc.ab: {stopped}", file=sys.stderr)
        return BAD_INPUT
    return INTERRUPTED if stopped else 0


def check(args):
    """Raise InvalidArgument for a number that can't be."""
    for name, least in (("rounds", 1), ("steps", 1), ("settle", 0), ("warmup", 0), ("seed", 0)):
        if getattr(args, name) < least:
            raise InvalidArgument(f"--{name} must be at least {least}, got {getattr(args, name)}")
    for name in ("batch", "seq_len"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InvalidArgument(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if not 0 < args.timeout < float("inf"):
        raise InvalidArgument(f"--timeout must be a number of seconds above 0, got {args.timeout:g}")
    if not 0 <= args.lr < float("inf"):
        raise InvalidArgument(f"--lr must be 0 or more, got {args.lr:g}")


def check_sweep(name, sides):
    for side in sides:
        if name in side.options:
            raise InvalidArgument(f"{name} is swept, so {side.text!r} can't set it")


def check_output(path):
    """Raise InvalidArgument when the result could not be written at the end."""
    if path.is_dir() or path.suffix == ".png":
        raise InvalidArgument(f"--output {path}: expected a file's name, such as result.json")
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidArgument(f"--output {path}: nothing can be written to {folder}")


def choose_model(args, backend):
    """(name, config, checkpoint file or None) of -e, or of what is measured without it."""
    if args.model is None:
        if backend != "cpu":
            return "d12", GPT2Config.from_descriptor("d12"), None
        config = GPT2Config(**SHAPE, vocab=BYTES_VOCAB, context=args.seq_len or 64)
        return f"L{config.layers}C{config.channels}", config, None
    if os.path.exists(args.model) or args.model.endswith(".bin"):
        return Path(args.model).stem, peek_checkpoint(args.model)[0], args.model
    return args.model.replace(":", "-"), GPT2Config.from_descriptor(args.model), None


def shape(args, config, backend):
    """{"batch", "seq_len"} of a step."""
    small = args.model is None and backend == "cpu"
    if args.seq_len is not None and args.seq_len > config.context:
        raise InvalidArgument(f"rows of {args.seq_len} (-t) don't fit the model, whose longest sequence is {config.context}")
    return {
        "batch": args.batch if args.batch is not None else 8 if small else 4,
        "seq_len": args.seq_len if args.seq_len is not None else min(1024, config.context),
    }


def switches(backend, where, base):
    """A Variant for each switch of SWITCHES that would change what A is."""
    settled = resolved({**where, **base.options, **({"library": base.library} if base.library else {})})
    found = []
    for text in variants.SWITCHES[backend]:
        variant = variants.parse_variant(text)
        changed = resolved({**where, **base.options, **variant.options})
        same = all(getattr(changed, name) == getattr(settled, name) for name in variant.options)
        if same and variant.lag in (None, base.lag):
            continue
        found.append(on_top(base, variant))
    return found


def on_top(base, variant):
    """A's settings with those of a switch over them, labelled by the switch alone."""
    return variants.Variant(
        variant.text, {**base.options, **variant.options}, {**base.hyper, **variant.hyper},
        base.lag if variant.lag is None else variant.lag, base.library,
    )  # fmt: skip


def prepare(args, point, number, base, others, work, where, library, notes):
    """The Comparisons at one point of a sweep. What a switch or a point can't do is left out with a note when nobody
    asked for it by name."""
    a = EngineSide(base, work, where, args.settle, args.warmup)
    place = report.point_name(point)
    try:
        measure.plan(Comparison(a, None), False)
    except OutOfMemory as error:
        if not point:
            raise
        notes.append(f"{place} left out: {error}")
        return []
    found = []
    uuid = library.device_info(resolved(where).device)["uuid"]
    for letter, other in zip(LETTERS, others, strict=False):
        try:
            if other.binary:
                extra = split_flags(args.reference_args)
                b = ReferenceSide(other, work, a, args.settle, extra, args.timeout, uuid)
            else:
                b = EngineSide(other, work, where, args.settle, args.warmup)
            found.append(measure.plan(Comparison(a, b, letter, point), args.fresh))
        except (Unavailable, OutOfMemory, InvalidArgument) as error:
            if other.text in (args.b or []) and not (point and isinstance(error, OutOfMemory)):
                raise
            notes.append(f"{', '.join(filter(None, (place, other.label)))} left out: {error}")
    return found if others else [measure.plan(Comparison(a, None, at=point), args.fresh)]


def split_flags(text):
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise InvalidArgument(f"--reference-args {text!r}: {error}") from None


def run_all(args, comparisons, monitor):
    """Measure one comparison after the other, with a bar on a terminal. A stays open while the next one needs it."""
    total = sum(args.rounds * (4 if comparison.b is not None else 2) for comparison in comparisons)
    bar = tqdm(total=total, unit="block", dynamic_ncols=True, leave=False, disable=not has_size(sys.stderr))

    def read_gpu():
        reading = monitor.latest() if monitor else NOTHING
        return None if reading == NOTHING else reading

    with bar:
        for number, comparison in enumerate(comparisons):
            what = comparison.b.label if comparison.b is not None else comparison.a.label
            bar.set_description_str(", ".join(filter(None, (report.point_name(comparison.at), what)))[:50])
            measure.run(comparison, args.rounds, args.steps, args.seed + number, read_gpu, bar.update)
            if comparison.b is not None:
                comparison.b.close()
            if number + 1 == len(comparisons) or comparisons[number + 1].a is not comparison.a:
                comparison.a.close()


def finish(args, output, result):
    """Table, JSON file, picture, last line."""
    print(report.text_of(record.plain(result)), flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    record.write(output, result)
    print(f"\nresult: {output}")
    if not args.no_plot:
        draw(output, record.plain(result))
    if args.json:
        print(record.brief(result), flush=True)


def draw(output, result):
    """The picture; whatever fails there is a remark, for the figures are measured and written."""
    try:
        from . import picture

        path = picture.draw(output, result)
    except Exception as error:
        print(f"note: no picture was drawn: {type(error).__name__}: {error}")
    else:
        print(f"picture: {path}")


def unused_file(name):
    """runs/TIME-ab-NAME.json, which doesn't exist yet."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-ab-{name}"
    choices = (Path("runs", f"{stem}{ending}.json") for ending in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in choices if not path.exists())

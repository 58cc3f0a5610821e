"""Command line of the A/B: python -m pyllmc.ab"""

import contextlib
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm

from .. import _native, options
from ..cli import Parser
from ..console import has_size
from ..errors import InvalidArgument, LlmcError, Unavailable, sentence
from ..exits import BAD_INPUT, INTERRUPTED, status_of
from ..monitor import NOTHING, GpuMonitor
from . import measure, plan, record, report, variants
from .conditions import command_line, conditions
from .engine import resolved
from .options import GROUPS
from .workload import Workload

LENGTH = 16  # batches that are served again and again
DESCRIPTION = """Compare training step times: two or more settings of this engine, or this engine and an llm.c trainer.
Blocks of steps alternate; the verdict is faster, slower, or no difference that so many rounds could see.
Exit status: 0 measured, whoever won; 2 bad input; 130 interrupted (what was measured is written); 141 nobody reads the output."""


def main(argv=None):
    """Measure as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog="python -m pyllmc.ab", description=DESCRIPTION)

    def body():
        args = parser.read(argv)
        return compare(args, command_line(argv)) if args.draw is None else redraw(args)

    return status_of("pyllmc.ab", body, "interrupted before anything was measured")


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
    output = Path(args.output or unused_file(args.model))
    check_output(output)
    base = variants.parse_variant(args.a)
    if base.binary:
        raise InvalidArgument("--a must be this engine, whose settings the reference takes over: give the binary to --b")
    others = [variants.parse_variant(text) for text in args.b or []]
    swept, points = None, [{}]
    if args.sweep is not None:
        swept, values = variants.parse_sweep(args.sweep)
        points = [{swept: value} for value in values]
        plan.check_sweep(swept, [base, *others])
    library, ordinal, _ = _native.choose(args.device, base.library)
    name, config, weights = plan.choose_model(args, library.backend)
    where = {"device": args.device, **plan.shape(args, config, library.backend)}
    if args.each_switch:
        others += plan.switches(library.backend, where, base)
    described = {
        "model": name, "parameters": config.num_params, "batch": where["batch"], "seq_len": where["seq_len"],
        "data": args.train or "random tokens, the same for all sides", "learning_rate": args.lr,
        "sweep": swept and f"{swept}={','.join(str(point[swept]) for point in points)}",
        **{key: getattr(args, key) for key in ("rounds", "steps", "settle", "warmup", "seed", "fresh")},
    }  # fmt: skip
    notes = list(weights.notes) if weights else []
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(open_workload(args, config, weights, where, points, base, others))
        comparisons = plan.prepare_all(args, points, base, others, work, where, library, notes)
        monitor = None
        if library.backend != "cpu":
            monitor = stack.enter_context(GpuMonitor(library.device_info(ordinal)["uuid"]))
            monitor.first()
        found = conditions(library, ordinal, command)
        status, stopped = measure_all(args, comparisons, monitor)
    if stopped and status == BAD_INPUT:
        print(f"pyllmc.ab: {stopped}", file=sys.stderr)
    finish(args, output, record.build(comparisons, described, found, notes, stopped))
    return status


def open_workload(args, config, weights, where, points, base, others):
    """The Workload that suffices for the largest batch of any side; with the weights as a file if a trainer needs them."""
    sizes = [resolved({**where, **point, **side.options}) for point in points for side in (base, *others)]
    most = max(1, *(size.batch * size.seq_len for size in sizes))
    length, dtype = LENGTH, options.word_of("precision", sizes[0].precision)
    trainer = any(side.binary for side in others)
    if trainer:  # its run must not come to the end of the data, where it would be shuffled anew
        length = max(length, args.steps + max(1, args.settle))
    work = Workload(config, weights, args.train, args.lr, length, most, dtype)
    if trainer:
        try:
            work.checkpoint()
        except BaseException:
            work.close()
            raise
    return work


def measure_all(args, comparisons, monitor):
    """(exit status, why it stopped early or None). An error or Ctrl-C is raised when nothing was measured before."""
    try:
        run_all(args, comparisons, monitor)
        return 0, None
    except KeyboardInterrupt:
        if not any(comparison.blocks for comparison in comparisons):
            raise
        return INTERRUPTED, "interrupted"
    except (LlmcError, OSError) as error:
        if not any(comparison.rounds() for comparison in comparisons):
            raise
        return BAD_INPUT, sentence(error)
    finally:
        for comparison in comparisons:
            for side in comparison.sides.values():
                side.close()


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


def check_output(path):
    """Raise InvalidArgument when the result could not be written at the end."""
    if path.is_dir() or path.suffix == ".png":
        raise InvalidArgument(f"--output {path}: expected a file's name, such as result.json")
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidArgument(f"--output {path}: nothing can be written to {folder}")


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
        print(f"note: no picture was drawn: {type(error).__name__}: {sentence(error)}")
    else:
        print(f"picture: {path}")


def unused_file(model):
    """runs/TIME-ab-MODEL.json, which doesn't exist yet."""
    name = Path(os.path.abspath(model or "default")).stem.replace(":", "-")
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-ab-{name}"
    choices = (Path("runs", f"{stem}{ending}.json") for ending in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in choices if not path.exists())

"""Command line of the profiler: python -m pyllmc.profile"""

import contextlib
import os
import statistics
import sys
import warnings
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from .. import _native, memory, options, peaks
from ..cli import Parser
from ..config import GPT2_VOCAB, GPT2Config
from ..console import has_size
from ..errors import InvalidArgument, LlmcError, OutOfMemory, Unavailable
from ..named_model import named_model
from ..settings import Settings
from ..train import BAD_INPUT, BYTES_VOCAB, INTERRUPTED, OUTPUT_CLOSED, out_of_memory, planner, resolved, unused_folder
from ..train import SHAPE as SMALL_SHAPE
from ..train_options import pick
from . import ceilings, document, measured, report, spans
from .draw import draw_all, write_all
from .kernel_profile import profile_kernels
from .op_costs import Shape, step_work
from .options import BESIDE_DRAW, ENGINE_FIELDS, GROUPS, SHAPE
from .record import Runner, make_model

PROGRAM = "pyllmc.profile"
DESCRIPTION = """Shows where a training step's time and memory go: a timeline of its lanes, times of ops (with
--kernels of kernels) against what the device can do at best, and the memory plan. Random tokens, random weights
unless -e names a checkpoint. Exit status: 0 done; 2 bad input; 130 interrupted; 141 nobody reads the output."""


def main(argv=None):
    """Profile as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog=f"python -m {PROGRAM}", description=DESCRIPTION)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *_, **__: print(f"note: {text}", file=sys.stderr)
            return run(parser.read(argv))
    except KeyboardInterrupt:
        print(f"\n{PROGRAM}: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        print(f"{PROGRAM}: nobody reads the output", file=sys.stderr)
        return OUTPUT_CLOSED
    except (LlmcError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return BAD_INPUT


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
        name, config, checkpoint = chosen_model(args)
        folder = Path(args.output or unused_folder(name, "profiles"))
        check_folder(folder)
        profile = measure(args, name, config, checkpoint)
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
    """(name, config, checkpoint file or None) that the arguments name."""
    shape = pick(args, SHAPE)
    library, _, _ = _native.choose(args.device)
    if args.model is None and library.backend == "cpu":
        config = GPT2Config(**{**SMALL_SHAPE, "vocab": BYTES_VOCAB, "context": max(args.seq_len, 1), **shape})
        return f"L{config.layers}C{config.channels}", config, None
    if args.model is None:
        return named_model("d12", {"vocab": GPT2_VOCAB, **shape})
    return named_model(args.model, shape)


def check_folder(folder):
    """Raise InvalidArgument, before anything is measured, where no folder can be made or written to."""
    existing = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    if not existing.is_dir():
        raise InvalidArgument(f"-o {folder}: {existing} is a file, expected a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InvalidArgument(f"-o {folder}: {existing} can't be written to")


def measure(args, name, config, checkpoint):
    """The profile, a dict as document.py keeps it."""
    if args.steps < 1:
        raise InvalidArgument(f"-x must be at least 1 step, got {args.steps}")
    library, ordinal, _ = _native.choose(args.device)
    on_cpu = library.backend == "cpu"
    warmup = (2 if on_cpu else 10) if args.warmup is None else args.warmup
    if warmup < 0:
        raise InvalidArgument(f"--warmup must be 0 steps or more, got {warmup}")
    seq_len = args.seq_len if "seq_len" in args.given else min(args.seq_len, config.context)
    where = {"batch": args.batch, "seq_len": seq_len, "device": args.device, **pick(args, ENGINE_FIELDS)}
    micro_steps = Settings(total_tokens=args.total_tokens).micro_batches(max(args.batch, 1), max(seq_len, 1), 1)
    plan_of, engine = planner(config, where), resolved(where)
    plans = [vars(plan_of(args.batch, level)) for level in range(3)]
    arithmetic = "fp32" if on_cpu else peaks.arithmetic(options.word_of("precision", engine.precision), engine.tf32)

    @contextlib.contextmanager
    def open_runner():
        try:
            model = make_model(config, checkpoint, where)
        except OutOfMemory as error:
            raise OutOfMemory(out_of_memory(error, where, plan_of)) from None
        with model:
            yield Runner(model, micro_steps)

    rounds = warmup + 2 * args.steps + ((warmup + args.steps + 1) if args.kernels and not on_cpu else 0)
    bar = tqdm(total=rounds, leave=False, dynamic_ncols=True, unit="step", disable=not has_size(sys.stderr))
    with bar, open_runner() as runner:
        runner.run(warmup, bar.update)
        plain = runner.run(args.steps, bar.update)
        recorded = []
        for _ in range(args.steps):
            recorded.append(runner.record())
            bar.update()
        model = runner.model
        shape = Shape.of(config, model.options, runner.distinct_tokens)
        device, notes, threads = model.device_info, model.notes(), model.options.threads
        used = {field: getattr(model.options, field) for field in ENGINE_FIELDS}
    shown, recorded_ms = sorted(recorded, key=lambda pair: pair[1])[(len(recorded) - 1) // 2]
    notes += remarks(shown)
    op_times, kernels = measured.op_times_from_spans([each for each, _ in recorded]), None
    if args.kernels:
        try:
            if on_cpu:
                raise Unavailable("the CPU engine runs no kernels")
            with bar:
                op_times, kernels, more = profile_kernels(open_runner, args.steps, warmup, bar.update)
            notes += more
        except Unavailable as error:
            notes.append(f"{error}: times are those of spans")
    seen = document.conditions(library, device)
    key = ceilings.key_of(device, seen["driver"], library.build_info, arithmetic)
    best = ceilings.kept(key)
    if args.ceilings:
        best = ceilings.measure(library, ordinal, threads or device["multiprocessors"], arithmetic)
        ceilings.keep(key, best)
    work = step_work(shape, shown, micro_steps)
    calls = Counter(span.name for span in shown)
    device_ms = [ms for ms in plain.device_ms if ms == ms] or [plain.wall_ms]
    return {
        "conditions": seen,
        "workload": {
            "model": name, "config": vars(config), "batch": args.batch, "seq_len": seq_len, "micro_steps": micro_steps,
            "precision": arithmetic, "tokens": f"random tokens, {shape.distinct} different ones in a micro-batch", "engine": used,
        },
        "step": {
            "ms": statistics.median(device_ms), "low": min(device_ms), "high": max(device_ms), "count": len(device_ms),
            "wall_ms": plain.wall_ms, "recorded_ms": recorded_ms, "kernels_busy": kernels and kernels["busy"],
        },
        "spans": document.span_dicts(shown), "analysis": spans.analyse(shown),
        "ops": measured.op_rows(op_times, work, calls, best), "kernels": kernels, "ceilings": best,
        "memory": {
            "recompute": engine.recompute, "device_total": plans[0]["device_total"],
            "plans": [{part: plan[part] for part in (*memory.PARTS, "total")} for plan in plans],
        },
        "notes": notes,
    }  # fmt: skip


def remarks(recorded):
    """What is odd about a recorded step, as sentences."""
    found = []
    unknown = measured.unknown_ops(recorded)
    if unknown:
        found.append(f"ops without an entry in op_costs.py: {', '.join(unknown)}")
    if not any(span.name == "adamw" for span in recorded):
        found.append("the step has more spans than the engine records: its end is missing from the timeline")
    return found


if __name__ == "__main__":
    sys.exit(main())

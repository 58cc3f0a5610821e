"""From arguments to what is to be measured: model, shape, sides, and the comparisons that fit the device."""

import shlex

from ..config import GPT2Config
from ..errors import InvalidArgument, OutOfMemory, Unavailable
from ..named_model import named_model
from ..train import SHAPE
from ..vocabulary import BYTES_VOCAB
from . import measure, report, variants
from .engine import EngineSide, resolved
from .measure import Comparison
from .reference import ReferenceSide

LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"


def choose_model(args, backend):
    """(name, config, Weights or None) of -e, or of what is measured without it."""
    if args.model is None and backend == "cpu":
        config = GPT2Config(**SHAPE, vocab=BYTES_VOCAB, context=args.seq_len or 64)
        return f"L{config.layers}C{config.channels}", config, None
    return named_model(args.model or "d12", {})


def shape(args, config, backend):
    """{"batch", "seq_len"} of a step."""
    small = args.model is None and backend == "cpu"
    if args.seq_len is not None and args.seq_len > config.context:
        raise InvalidArgument(f"rows of {args.seq_len} (-t) don't fit the model, whose longest sequence is {config.context}")
    return {
        "batch": args.batch if args.batch is not None else 8 if small else 4,
        "seq_len": args.seq_len if args.seq_len is not None else min(1024, config.context),
    }


def check_sweep(name, sides):
    for side in sides:
        if name in side.options:
            raise InvalidArgument(f"{name} is swept, so {side.text!r} can't set it")


def switches(backend, where, base):
    """A Variant for each switch of SWITCHES that would change what A is."""
    settled = resolved({**where, **base.options})
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


def prepare_all(args, points, base, others, work, where, library, notes):
    """The Comparisons of all points, none of them begun. notes: a list that gets what had to be left out."""
    if len(others) > len(LETTERS):
        raise InvalidArgument(f"{len(others)} sides to compare with A, at most {len(LETTERS)} can be")
    found = []
    for point in points:
        found += prepare(args, point, base, others, work, {**where, **point}, library, notes)
    if not found:
        raise OutOfMemory("nothing is left to measure: " + "; ".join(notes))
    return found


def prepare(args, point, base, others, work, where, library, notes):
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

"""The JSON file of a comparison: all that was measured, and what follows from it."""

import datetime
import json
import math
import statistics
from dataclasses import asdict

from ..atomic import atomic_write
from ..errors import FormatError
from . import losses, stats
from .engine import median

KIND, VERSION = "pyllmc.ab", 1
DISAGREE = 0.02  # between the host's clock and the device's events, from which on it is remarked
FEW = 2  # steps: below, a time is n/a


def build(comparisons, workload, conditions, notes=(), stopped=None):
    """The record of these Comparisons, plain values only. workload: what each step was. stopped: why the measurement
    ended early, None if it is complete."""
    return {
        "kind": KIND, "version": VERSION, "complete": stopped is None, "stopped": stopped,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "workload": workload, "conditions": conditions, "notes": list(notes),
        "comparisons": [one(comparison) for comparison in comparisons if comparison.blocks],
    }  # fmt: skip


def one(comparison):
    """The record of one Comparison."""
    a, b = comparison.a, comparison.b
    record = {
        "letter": comparison.letter if b is not None else None, "at": comparison.at,
        "one_at_a_time": not comparison.alive, "orders": comparison.orders,
        "sides": {name: side_of(side, comparison.of(name)) for name, side in comparison.sides.items()},
        "ratio": None, "by_median": None, "losses": None, "differences": [], "notes": list(comparison.notes),
        "blocks": [
            {"side": m.side, "round": m.round, "began_s": m.began_s, **asdict(m.block),
             "gpu": m.gpu._asdict() if m.gpu is not None else None}
            for m in comparison.blocks
        ],
    }  # fmt: skip
    if b is not None:
        record["ratio"] = ratio_of(comparison, lambda block: block.wall_ms)
        record["by_median"] = ratio_of(comparison, lambda block: median(block.step_ms))
        if record["by_median"]["verdict"] != record["ratio"]["verdict"]:
            record["notes"].append(
                f"{comparison.letter} by the median step of each block, which single slow steps don't move: "
                f"{record['by_median']['words']}"
            )
        record["losses"] = asdict(losses.compare(a.losses, b.losses, a.facts, b.facts))
        record["differences"] = losses.differences(a.facts, b.facts)
        if b.facts and not record["differences"]:
            record["notes"].append(f"A and {comparison.letter} have the same settings")
        if a.clock != b.clock:
            record["notes"].append(f"clocks: A, {a.clock}; {record['letter']}, {b.clock}")
    for name, side in record["sides"].items():
        letter = name if name == "A" else record["letter"]
        record["notes"] += [f"{letter}: {note}" for note in side.pop("remarks")]
    return record


def side_of(side, blocks):
    """What is known of a side, with the medians of its blocks."""
    walls = [block.wall_ms for block in blocks]
    steps = [ms for block in blocks for ms in block.step_ms]
    device = [ms for block in blocks for ms in block.device_ms]
    enough = len(steps) >= FEW
    ms, on_device = (median(values) if enough else None for values in (walls, device))
    remarks = list(side.notes)
    on_gpu = side.facts.get("backend") != "cpu"  # a CPU is host and device at once
    if ms and on_device and on_gpu and abs(ms / on_device - 1) > DISAGREE:
        remarks.append(
            f"{ms:.4g} ms a step by the host's clock, {on_device:.4g} between the device's events: "
            + ("the device waits between steps" if ms > on_device else "steps overlap on the device")
        )
    return {
        "label": side.label, "text": side.variant.text, "clock": side.clock, "tokens": side.tokens, "facts": side.facts,
        "started_s": side.started_s, "losses": [[update, side.losses[update]] for update in sorted(side.losses)],
        "command": getattr(side, "command", None),
        "steps": len(steps), "blocks": len(blocks), "ms": ms,
        "low": min(walls) if enough else None, "high": max(walls) if enough else None,
        "spread": statistics.stdev(steps) if enough else None, "device_ms": on_device,
        "host_us": median([block.host_us for block in blocks if block.host_us is not None]),
        "tokens_per_s": 1e3 * side.tokens / ms if ms else None, "remarks": remarks,
    }  # fmt: skip


def ratio_of(comparison, time_of):
    """The Ratio as a dict with its verdict; of the time for a token when the sides' steps have different sizes.

    time_of: milliseconds a step of a Block. The mean is what training takes, slow steps included; the median is
    the better detector where the machine's own hiccups hide a difference.
    """
    a, b = comparison.a, comparison.b
    rounds = [
        tuple([time_of(block) / side.tokens for block in blocks] for side, blocks in zip((a, b), pair, strict=True))
        for pair in comparison.rounds()
    ]
    resolution = 0.0
    for side, name in ((a, "A"), (b, "B")):
        if side.resolution_ms and comparison.of(name):
            resolution += side.resolution_ms / min(block.wall_ms for block in comparison.of(name))
    found = stats.ratio_of(rounds, resolution)
    per = "step" if a.tokens == b.tokens else "token"
    return {**asdict(found), "verdict": found.verdict, "words": words(found), "per": per}


def words(found):
    """The verdict of a Ratio for people; percentages are of A's time."""
    if found.ratio is None:
        return "n/a: no round is complete"
    if found.low is None:
        need = stats.MIN_ROUNDS
        return f"{found.rounds} round{'s' * (found.rounds > 1)} can't tell: {need} are the least"
    changes = [100 * (x - 1) for x in (found.ratio, found.low, found.high)]
    digits = 1 if changes[2] - changes[1] >= 1 else 2
    mean, low, high = (f"{abs(x):.{digits}f}" for x in changes)
    if found.verdict == "faster":
        return f"faster by {mean}% [{high}, {low}]"
    if found.verdict == "slower":
        return f"slower by {mean}% [{low}, {high}]"
    signed = ", ".join(f"{x:+.{digits}f}" for x in changes[1:])
    return f"no difference that {found.rounds} rounds could see [{signed}%]"


def write(path, record):
    """Write the record as a file that is complete or absent. JSON has no NaN: such numbers become null."""
    with atomic_write(path) as file:
        file.write(json.dumps(plain(record), indent=1, allow_nan=False).encode() + b"\n")


def brief(record):
    """One line of JSON without the single blocks, steps and losses."""
    short = {**record, "comparisons": []}
    for comparison in record["comparisons"]:
        sides = {
            name: {key: value for key, value in side.items() if key != "losses"}
            for name, side in comparison["sides"].items()
        }
        short["comparisons"].append({**{k: v for k, v in comparison.items() if k != "blocks"}, "sides": sides})
    return json.dumps(plain(short), allow_nan=False)


def read(path):
    """The record in a file. Raises FormatError for anything else, OSError for an unreadable file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        record = json.loads(text)
        kind, version = record["kind"], record["version"]
    except (ValueError, LookupError, TypeError):
        raise FormatError(f"{path}: not a result of pyllmc.ab") from None
    if (kind, version) != (KIND, VERSION):
        raise FormatError(f"{path}: holds {kind!r} version {version!r}, expected {KIND!r} version {VERSION}")
    return record


def plain(value):
    """`value` with None for every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value

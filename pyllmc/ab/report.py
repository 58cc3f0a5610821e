"""A record in words: losses first, then the table, then remarks."""

from ..console import short, table
from .engine import median

NA = "n/a"
HEAD = ("", "side", "ms a step", "[block low, high]", "device ms", "host us", "start s", "tok/s", "ratio [95%]", "verdict")


def text_of(record):
    """The whole report of a record, as lines."""
    lines = [table(conditions_of(record)), ""]
    points = {}
    for comparison in record["comparisons"]:
        points.setdefault(point_name(comparison["at"]), []).append(comparison)
    for comparison in record["comparisons"]:
        lines += losses_of(comparison)
    if any(comparison["losses"] for comparison in record["comparisons"]):
        lines.append("")
    rows = [HEAD]
    for point, comparisons in points.items():
        if point:
            rows.append((point,))
        rows += side_rows(comparisons)
    lines += columns(rows)
    told = list(record["notes"])
    for comparison in record["comparisons"]:
        place = point_name(comparison["at"])
        here = f"{place}: " if place else ""
        told += [here + note for note in comparison["notes"]]
        if comparison["differences"]:
            told.append(f"{here}A and {comparison['letter']} differ in {listed(comparison['differences'])}")
        if comparison["ratio"] and comparison["ratio"]["per"] == "token":
            told.append(f"{here}{comparison['letter']}: steps have different sizes, the ratio is of the time for a token")
    lines += ["", *(f"note: {text}" for text in dict.fromkeys(told))] if told else []
    if not record["complete"]:
        lines.append(f"INCOMPLETE: {record['stopped']}; the figures are of what was measured until then")
    return "\n".join(lines)


def conditions_of(record):
    """(label, text) rows: where, what, how."""
    found, work = record["conditions"], record["workload"]
    gpu = [
        f"{name} {show(found.get(key))}{unit}"
        for name, key, unit in (("driver", "driver", ""), ("power cap", "power_limit_w", " W"),
                                ("SM clock", "sm_clock_mhz", " MHz"), ("at most", "max_sm_clock_mhz", " MHz"))
    ]  # fmt: skip
    rows = [
        ("device", found["device"] + (f" ({', '.join(gpu)})" if found["backend"] != "cpu" else "")),
        ("engine", found["engine"]),
        ("model", f"{work['model']}: {short(work['parameters'])} parameters, {shape_of(work)}"),
        ("data", work["data"]),
        ("method", f"{count(work['rounds'], 'round')} of ABBA or BAAB by lot, blocks of {count(work['steps'], 'step')} "
                   f"after {work['settle']} untimed; {work['warmup']} untimed after a model was made"),
        ("commit", f"{show(found['commit'])}; load of the machine {show(found['load'])}"),
        ("command", found["command"]),
    ]  # fmt: skip
    if found["problem"]:
        rows.append(("GPU", found["problem"]))
    return rows


def shape_of(work):
    """"B=4, T=1024", with the values of a sweep in place of what it changes."""
    swept, _, values = (work["sweep"] or "").partition("=")
    parts = [
        f"{letter}={values if swept == name else work[name]}" for name, letter in (("batch", "B"), ("seq_len", "T"))
    ]
    return ", ".join(parts if swept in ("", "batch", "seq_len") else [*parts, work["sweep"]])


def losses_of(comparison):
    """Lines about the agreement of a comparison's losses."""
    found = comparison["losses"]
    if found is None:
        return []
    place = point_name(comparison["at"])
    who = f"{comparison['letter']} against A" + (f", {place}" if place else "")
    why = f" ({found['why']})" if found["why"] else ""
    first = "the first step" if found["compared"] == 1 else f"the first {found['compared']} steps"
    if found["beyond"]:
        return [
            f"LOSSES DIFFER, {who}: step {found['beyond']} gives A {show(found['a'], '.6f')} and "
            f"{comparison['letter']} {show(found['b'], '.6f')}; rounding explains {found['allowed']:.2g} nats. "
            f"A faster wrong answer is not faster.{why}"
        ]
    if not found["compared"]:
        return [f"losses, {who}: {found['why']}"]
    if not found["largest"]:
        return [f"losses are equal, {who}, in {first}{why}"]
    return [
        f"losses agree, {who}: at most {found['largest']:.2g} nats apart in {first} (at step {found['at']}){why}"
    ]


def side_rows(comparisons):
    """Table rows of one point: A once, over all its comparisons, then each other side with its ratio."""
    first = comparisons[0]["sides"]["A"]
    blocks = [block["wall_ms"] for comparison in comparisons for block in comparison["blocks"] if block["side"] == "A"]
    pooled = {**first, "ms": known_median(c["sides"]["A"]["ms"] for c in comparisons)}
    if pooled["ms"] is not None:
        pooled.update(low=min(blocks), high=max(blocks), tokens_per_s=1e3 * first["tokens"] / pooled["ms"])
    for name in ("device_ms", "host_us"):
        pooled[name] = known_median(c["sides"]["A"][name] for c in comparisons)
    rows = [side_row("A", pooled)]
    for comparison in comparisons:
        if "B" in comparison["sides"]:
            rows.append(side_row(comparison["letter"], comparison["sides"]["B"], comparison))
    return rows


def side_row(letter, side, comparison=None):
    spread = NA if side["low"] is None else f"[{side['low']:.3f}, {side['high']:.3f}]"
    row = (
        letter, side["label"], show(side["ms"], ".3f"), spread, show(side["device_ms"], ".3f"),
        show(side["host_us"], ".0f"), show(side["started_s"], ".1f"), NA if side["tokens_per_s"] is None else short(side["tokens_per_s"]),
    )  # fmt: skip
    if comparison is None:
        return row
    ratio = comparison["ratio"]
    text = show(ratio["ratio"], ".4f")
    if ratio["low"] is not None:
        text += f" [{ratio['low']:.4f}, {ratio['high']:.4f}]"
    wrong = "  LOSSES DIFFER" if comparison["losses"]["beyond"] else ""
    return (*row, text, ratio["words"] + wrong)


def count(number, what):
    return f"{number} {what}" + ("" if number == 1 else "s")


def known_median(values):
    return median([value for value in values if value is not None])


def columns(rows):
    """Rows of cells as aligned lines: words to the left, figures to the right. A row of one cell is a title."""
    full = [row for row in rows if len(row) > 1]
    widths = [max(len(row[i]) for row in full if i < len(row)) for i in range(max(map(len, full)))]
    lines = []
    for row in rows:
        if len(row) == 1:
            lines.append(row[0])
            continue
        cells = [
            cell.rjust(width) if 2 <= i <= 7 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def listed(differences):
    """"streams (4, 1), lag (2, 0)"."""
    return ", ".join(f"{name} ({show(a)}, {show(b)})" for name, a, b in differences)


def point_name(at):
    """"batch=4" of {"batch": 4}."""
    return ", ".join(f"{name}={value}" for name, value in at.items())


def show(value, form=None):
    if value is None:
        return NA
    if form is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    return format(value, form)

"""A profile as text: tables for the terminal and for the page."""

from ..console import table
from ..memory import PARTS, size

TOP_GAPS = 5
NAME_WIDTH = 44
FOR = {
    "parameters": "weights, in the model's precision",
    "gradients": "as many, in the same precision",
    "optimizer": "both moments in fp32, and fp32 master weights where they are kept",
    "activations": "what the forward pass keeps for the backward pass",
    "logits": "one piece of the head (--head-chunks makes it smaller)",
    "workspace": "gradients of activations, scratch of the ops",
    "batches": "the ring of token batches on the device",
}


def text(profile):
    """The whole report."""
    blocks = [headline(profile), lines(lane_table(profile)), gap_lines(profile), lines(op_table(profile))]
    if profile["kernels"]:
        blocks.append(lines(kernel_table(profile)))
    blocks.append(lines(memory_table(profile)))
    if profile["notes"]:
        blocks.append("\n".join(f"note: {note}" for note in profile["notes"]))
    return "\n\n".join(block for block in blocks if block)


def title(profile):
    """One line for pictures: the model and its batch."""
    work = profile["workload"]
    micro = f", {work['micro_steps']} micro-steps" if work["micro_steps"] > 1 else ""
    return f"{work['model']}, B = {work['batch']}, T = {work['seq_len']}{micro}, {work['precision']}"


def subtitle(profile):
    """One line for pictures: the device, the time of a step, how it was measured."""
    step = profile["step"]
    source = "kernels timed by CUPTI" if profile["kernels"] else "spans timed by the engine's events"
    return f"{profile['conditions']['device']}; {spread(step)} a step over {step['count']}; {source}"


def spread(times):
    """Median and extremes of a {"ms", "low", "high"}; n/a where the device gave no times."""
    if times["ms"] is None:
        return "n/a"
    return f"{times['ms']:.4g} ms [{times['low']:.4g}, {times['high']:.4g}]"


def headline(profile):
    seen, step, best = profile["conditions"], profile["step"], profile["ceilings"]
    rows = [
        ("device", f"{seen['device']}{', driver ' + seen['driver'] if seen['driver'] else ''}"),
        ("engine", seen["libraries"]),
        ("workload", f"{title(profile)}; {profile['workload']['tokens']}"),
        ("step", f"{spread(step)}, median and extremes of {step['count']}; the one with spans {_recorded(step)}"),
        ("ceilings", ceilings_text(best) if best else "not measured for this device: --ceilings does it, once"),
    ]
    return table(rows)


def _recorded(step):
    """How long the recorded step took, and what its events cost."""
    longer = f" ({step['recorded_ms'] / step['ms'] - 1:+.1%})" if step["ms"] and step["recorded_ms"] else ""
    return f"{_ms(step['recorded_ms'])}{longer}"


def ceilings_text(best):
    copy, product = _rate(best["copy_tb_s"], "B/s"), _rate(best["product_tflops"], "FLOP/s")
    return f"copy {copy}, product {product} ({best['how']})"


def lane_table(profile):
    """(caption, heads, rows) of the lanes."""
    found = profile["analysis"]
    rows = [
        (row["lane"], _ms(row["busy_us"] / 1e3), percent(row["share_of_step"]), row["spans"], percent(row["beside_compute"]))
        for row in found["lanes"]
    ]  # fmt: skip
    return "lanes of the recorded step", ("lane", "busy", "of the step", "spans", "beside compute"), rows


def gap_lines(profile):
    """Overlap, idle shares and the longest gaps, a line each."""
    found = profile["analysis"]
    copies, idle, gaps = found["copies"], found["idle"], found["gaps"]
    listed = [
        f"copies   {_ms(copies['busy_us'] / 1e3)}, {percent(copies['beside_compute'])} of it beside compute",
        f"idle     compute lane {percent(idle['compute'])}, all lanes {percent(idle['all_lanes'])} of the recorded step, "
        "its events included",
    ]
    kernels = profile["kernels"]
    if kernels and kernels["busy"] is not None:
        listed.append(f"idle     {percent(1 - kernels['busy'])} of steps without spans no kernel ran (CUPTI watching)")
    total = sum(gap["end_us"] - gap["start_us"] for gap in gaps)
    listed.append(f"gaps     {len(gaps)} in compute, {_ms(total / 1e3)} together{'; the longest:' if gaps else ''}")
    listed += [
        f"         {gap['end_us'] - gap['start_us']:8.1f} us at {_ms(gap['start_us'] / 1e3)}, after "
        f"{gap['after'] or 'the start'}, before {gap['before'] or 'the end'}"
        for gap in gaps[:TOP_GAPS]
    ]
    return "\n".join(listed)


def op_table(profile):
    """(caption, heads, rows) of the ops, the longest first."""
    ops, ms = profile["ops"], _fixed(profile)
    flop, scale = ("TFLOP/s", 1) if max((row["tflops"] or 0 for row in ops), default=0) >= 1 else ("GFLOP/s", 1000)
    heads = ("op", "calls", "ms", "low", "high", "share", flop, "GB/s", "floor ms", "above ms", "of ceiling")
    rows = [
        (row["op"], row["calls"], *(ms(row[key]) for key in ("ms", "low", "high")), percent(row["share"]),
         _significant(row["tflops"], scale), _significant(row["tb_s"], 1000), ms(row["floor_ms"]), ms(row["above_ms"], "+"),
         _of_ceiling(row))
        for row in ops
    ]  # fmt: skip
    source = "kernels of steps without spans" if profile["kernels"] else "spans, whose events add a little to each"
    return f"ops, milliseconds a step by {source}", heads, rows


def kernel_table(profile):
    """(caption, heads, rows) of the kernels, the longest first."""
    found, ms = profile["kernels"], _fixed(profile)
    heads = ("kernel", "calls", "ms", "low", "high", "mean us", "share", "works for")
    rows = [
        (_short(row["kernel"]), row["calls"], *(ms(row[key]) for key in ("ms", "low", "high")), f"{row['mean_us']:.1f}",
         percent(row["share"]), _short(", ".join(row["ops"])))
        for row in found["rows"]
    ]  # fmt: skip
    return f"kernels; {percent(found['assigned'])} of their time is assigned to an op", heads, rows


def memory_table(profile):
    """(caption, heads, rows) of the memory plan."""
    found = profile["memory"]
    plan = found["plans"][found["recompute"]]
    rows = [(part, size(plan[part]), percent(plan[part] / plan["total"] if plan["total"] else None), FOR[part]) for part in PARTS]
    totals = ", ".join(f"-r {level} {size(each['total'])}" for level, each in enumerate(found["plans"]))
    rows.append(("total", size(plan["total"]), "", f"of {size(found['device_total'])}; {totals}"))
    return "memory", ("part", "bytes", "share", "for"), rows


def lines(of):
    """A (caption, heads, rows) as aligned text: the first column and last words to the left, numbers to the right."""
    caption, heads, rows = of
    cells = [[str(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    left = [i == 0 or heads[i] in ("for", "works for") for i in range(len(heads))]
    body = [
        "  ".join(f"{cell:<{width}}" if to_left else f"{cell:>{width}}" for cell, width, to_left in zip(row, widths, left, strict=True))
        for row in cells
    ]
    return "\n".join([caption, *(line.rstrip() for line in body)])


def percent(share):
    return "-" if share is None else f"{share:.1%}"


def _of_ceiling(row):
    return "-" if row["of_ceiling"] is None else f"{row['of_ceiling']:.0%} {row['bound']}"


def _significant(value, scale=1):
    """Four digits, for figures that no column has to line up by their point."""
    if value is None:
        return "-"
    return f"{scale * value:.0f}" if scale * value >= 1000 else f"{scale * value:.4g}"


def _fixed(profile):
    """A format of milliseconds with as many digits as steps of this length need."""
    digits = 3 if (profile["step"]["ms"] or 0) >= 5 else 4
    return lambda ms, sign="": "-" if ms is None else f"{ms:{sign}.{digits}f}"


def _rate(tera, unit):
    return f"{tera:.3g} T{unit}" if tera >= 0.2 else f"{1000 * tera:.3g} G{unit}"


def _ms(ms):
    return "n/a" if ms is None else f"{ms:.4g} ms"


def _short(name):
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 3] + "..."

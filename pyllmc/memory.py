"""The memory plan in words: what a model takes, what the device has, and what would fit instead."""

from .errors import LlmcError

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "workspace", "batches")
UNITS = ((2**30, "GiB", 1), (2**20, "MiB", 0))


def summary(plan, recompute=0):
    """One line of an llmc_memory: total, free, the parts that are not negligible, and the total at the other
    levels of recomputation where that makes a difference. recompute: the level that was planned."""
    unit, name, digits = UNITS[0] if plan.total >= 2**30 else UNITS[1]
    values = ((part, getattr(plan, part) / unit) for part in PARTS)
    parts = ", ".join(f"{part} {value:.{digits}f}" for part, value in values if value >= 0.5 / 10**digits)
    text = f"{plan.total / unit:.{digits}f} {name} of {size(plan.device_free)} free: {parts or 'next to nothing'}"
    others = [
        f"-r {level} {total / unit:.{digits}f}"
        for level, total in enumerate(plan.total_by_recompute)
        if level != recompute and abs(total - plan.total) >= 0.01 * plan.total
    ]
    return f"{text}; with {', '.join(others)}" if others else text


def what_fits(plan_of, batch, recompute):
    """The flags that would make a plan fit, as the end of a sentence; "" when none is known to.

    plan_of: an llmc_memory from (batch, recompute). Tried are more recomputation, then smaller batches.
    """
    try:
        plan = plan_of(batch, recompute)
        free = plan.device_free
        found = [
            f"-r {level} ({size(total)})"
            for level, total in enumerate(plan.total_by_recompute)
            if level > recompute and total <= free
        ][:1]
        largest = largest_batch(lambda rows: plan_of(rows, recompute), batch - 1)
        if largest:
            found.append(f"-b {largest} ({size(plan_of(largest, recompute).total)})")
    except LlmcError:  # advice is no reason for a second error
        return ""
    if not found:
        return f"nothing less than another model fits {size(free)}"
    return f"what would fit {size(free)}: {' or '.join(found)}"


def largest_batch(plan_of, most, share=1.0):
    """The largest number of rows, up to `most`, whose plan takes at most `share` of what is free; 0: none.

    A plan on a GPU prepares its attention and takes a noticeable time, so few are made: memory grows by
    nearly the same amount with each row, which two plans tell; the next ones confirm or correct by a row.
    """
    if most < 1:
        return 0
    whole = plan_of(most)
    allowed = share * whole.device_free
    if whole.total <= allowed:
        return most
    one = plan_of(1)
    if one.total > allowed:
        return 0
    each = (whole.total - one.total) / (most - 1)
    rows = int(min(1 + (allowed - one.total) / each, most - 1))
    while rows > 1 and plan_of(rows).total > allowed:
        rows -= 1
    while rows + 1 < most and plan_of(rows + 1).total <= allowed:
        rows += 1
    return rows


def size(count):
    """Bytes for people."""
    unit, name, digits = UNITS[0] if count >= 2**30 else UNITS[1]
    return f"{count / unit:.{digits}f} {name}"

"""Whether both sides computed the same: a faster wrong answer is not faster."""

import math
from dataclasses import dataclass

# Nats that rounding alone may put between two losses before any update. bf16 keeps 8 significant bits (the
# reference's own bf16 and fp32 runs of one model start 4e-4 apart and are at most 6e-3 apart in the first
# seven steps), TF32 11 bits, and in fp32 the order of sums is left.
NOISE = {"bf16": 2e-3, "tf32": 5e-4, "fp32": 1e-4}
# Each update feeds the noise back, AdamW enlarging it where gradients are near zero: as much again per update is
# allowed, and after so many updates nothing can be concluded from a difference.
JUDGED = 10
OPTIMIZER = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip", "max_loss_z", "max_norm_z")


@dataclass(frozen=True)
class Losses:
    """compared: number of first updates whose losses were judged. largest: greatest difference among them in nats,
    at: its step, counted from 1. beyond: the first step whose difference noise doesn't explain, or None; there
    a and b are the losses and allowed is the limit. why: a sentence when few or no steps could be judged."""

    compared: int
    largest: float | None = None
    at: int | None = None
    beyond: int | None = None
    a: float | None = None
    b: float | None = None
    allowed: float | None = None
    why: str = ""


def compare(a, b, facts_a, facts_b):
    """The Losses of two sides: {update: loss} each, and what is known of their settings."""
    for name in ("batch", "seq_len"):
        if differ(facts_a.get(name), facts_b.get(name)):
            return Losses(0, why=f"not comparable, {name} is {facts_a.get(name)} and {facts_b.get(name)}")
    judged, why = JUDGED, ""
    changed = [name for name in OPTIMIZER if differ(facts_a.get(name), facts_b.get(name))]
    if changed:
        judged, why = 1, f"only the first one can be judged, before {', '.join(changed)} came in"
    noise = max(NOISE[arithmetic(facts)] for facts in (facts_a, facts_b))
    shared = [update for update in range(judged) if update in a and update in b]
    largest, at = None, None
    for update in shared:
        gap, allowed = abs(a[update] - b[update]), noise * (1 + update)
        if not (math.isfinite(a[update]) and math.isfinite(b[update]) and gap <= allowed):
            return Losses(
                len(shared), gap if math.isfinite(gap) else None, update + 1, update + 1, a[update], b[update], allowed, why
            )
        if largest is None or gap > largest:
            largest, at = gap, update + 1
    return Losses(len(shared), largest, at, why=why if shared else "no step was made by both sides")


def arithmetic(facts):
    """The key in NOISE of a side's products."""
    if facts.get("precision") != "fp32":
        return "bf16"
    return "tf32" if facts.get("tf32") and facts.get("backend") != "cpu" else "fp32"


def differ(a, b):
    """Whether two settings are known and different; numbers that are equal in six digits are not."""
    if a is None or b is None or a == b:
        return False
    try:
        return not math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    except TypeError:
        return True


def differences(facts_a, facts_b):
    """[(name, A's, B's)] of what is known of both and differs."""
    names = [name for name in facts_a if differ(facts_a[name], facts_b.get(name))]
    if "fp32" not in (facts_a.get("precision"), facts_b.get("precision")):
        names = [name for name in names if name != "tf32"]  # it concerns fp32 alone
    return [(name, facts_a[name], facts_b[name]) for name in names]

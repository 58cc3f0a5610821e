"""Rounds of blocks: which side's turn it is, and which models are alive meanwhile."""

import time
from dataclasses import dataclass, field

from .. import memory
from ..errors import OutOfMemory
from .stats import orders

SHARE = 0.95  # of free memory that two models may take together


@dataclass
class Measured:
    """One block of a comparison. side: "A" or "B". began_s: since the comparison's first block."""

    side: str
    round: int
    began_s: float
    block: object
    gpu: object = None


@dataclass
class Comparison:
    """Sides A and B (None: A alone), and what was measured of them so far. at: {name: value} of a sweep."""

    a: object
    b: object | None
    letter: str = "B"
    at: dict = field(default_factory=dict)
    orders: list = field(default_factory=list)
    blocks: list = field(default_factory=list)
    alive: bool = True
    notes: list = field(default_factory=list)

    @property
    def sides(self):
        return {"A": self.a} if self.b is None else {"A": self.a, "B": self.b}

    def of(self, side):
        """The blocks of a side, in order of measurement."""
        return [measured.block for measured in self.blocks if measured.side == side]

    def rounds(self):
        """[(A's blocks, B's blocks)] of the rounds that are complete."""
        found = []
        for number in range(len(self.orders)):
            here = [m for m in self.blocks if m.round == number]
            if len(here) == len(self.orders[number]):
                found.append(tuple([m.block for m in here if m.side == side] for side in "AB"))
        return found


def plan(comparison, fresh):
    """Decide whether both models can be alive together, with a note when not. fresh: the user wants new ones.

    Raises OutOfMemory when a side doesn't even fit alone.
    """
    plans = {name: side.plan() for name, side in comparison.sides.items()}
    for name, found in plans.items():
        if found.total > found.device_free:
            raise OutOfMemory(
                f"{comparison.sides[name].label!r} needs {memory.size(found.total)}, the device has "
                f"{memory.size(found.device_free)} free"
            )
    need, free = sum(found.total for found in plans.values()), plans["A"].device_free
    comparison.alive = not fresh and need <= SHARE * free
    if not comparison.alive:
        why = "as asked" if fresh else f"together they need {memory.size(need)} of {memory.size(free)} free"
        comparison.notes.append(f"one model at a time, made and warmed up anew for each block: {why}")
    return comparison


def run(comparison, rounds, steps, seed, read_gpu=lambda: None, on_block=lambda: None):
    """Measure it, filling in comparison.blocks as it goes: an interruption leaves what there is.

    A side that is open stays open if all are alive together; otherwise each block opens and closes its own.
    """
    comparison.orders = orders(rounds, seed) if comparison.b is not None else ["AA"] * rounds
    if comparison.alive:
        for side in comparison.sides.values():
            side.open()
    else:
        comparison.a.close()
    start = time.monotonic()
    for number, order in enumerate(comparison.orders):
        for name in order:
            side, began = comparison.sides[name], time.monotonic() - start
            block = one_block(side, steps, comparison.alive)
            comparison.blocks.append(Measured(name, number, began, block, read_gpu()))
            on_block()


def one_block(side, steps, alive):
    if alive:
        return side.block(steps)
    try:
        side.open()
        return side.block(steps)
    finally:
        side.close()

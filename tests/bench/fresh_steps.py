"""Milliseconds a step as llm.c's trainer tells them: a fresh process, 25 steps of random tokens, the first left out.

    python -m tests.bench.fresh_steps d12 --batch 64
    python -m tests.bench.fresh_steps d12 --batch 4 --steps 100

Device times, from a step's first operation to its last. A large step starts out below the power limit and swings
once that acts: tests.bench.batch_sizes measures what lasts.
"""

import argparse
import statistics
import sys

import numpy as np

import pyllmc
from pyllmc.exits import status_of

LAG = 2  # steps under way while another is enqueued


def measure(config, batch, seq_len, steps):
    """(milliseconds of each step after the first, bytes in use on the device)."""
    tokens = np.random.default_rng(0).integers(0, config.vocab, (steps, 2, batch, seq_len), dtype=np.int32)
    found, under_way = [], []
    with pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cuda") as model:
        for inputs, targets in tokens:
            under_way.append(model.step(inputs, targets, lr=1e-4))
            if len(under_way) > LAG:
                found.append(under_way.pop(0).result().device_ms)
        found += [step.result().device_ms for step in under_way]
        memory = model.memory
    return found[1:], memory.device_total - memory.device_free


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fresh_steps", description=__doc__.partition("\n")[0])
    parser.add_argument("descriptor")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error(f"--steps is {args.steps}, expected at least 2: the first is left out")
    config = pyllmc.GPT2Config.from_descriptor(args.descriptor)
    ms, used = measure(config, args.batch, args.seq_len, args.steps)
    print(
        f"{args.descriptor}, B = {args.batch}: mean {statistics.mean(ms):.2f} ms, median {statistics.median(ms):.2f} "
        f"[{min(ms):.2f}, {max(ms):.2f}], {used / 2**30:.1f} GiB in use"
    )


if __name__ == "__main__":
    sys.exit(status_of("tests.bench.fresh_steps", main, "interrupted"))

"""What a drawn token costs with the keys and values kept, against reading its whole context again.

    python -m tests.bench.generation d12 --device cpu
    python -m tests.bench.generation d12 --device cuda --context 1023 --rows 16

Each round reads --context random tokens a row (the engine's prefill, which predicts after the last of them only:
the cheapest way to recompute) and draws eight after them, the sampling included. Random weights. The last line
printed is JSON, in milliseconds.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

import pyllmc
from pyllmc.exits import status_of
from pyllmc.generation import SideBySide

AFTER = 8


def measure(config, context, rounds, rows=1, device="cpu"):
    """(milliseconds of each reading, milliseconds of a token after it, mean of each round), all rows together."""
    prompt = np.random.default_rng(0).integers(0, config.vocab, context)
    seq_len, again, kept = context + AFTER, [], []
    sizes = {"batch": rows, "seq_len": seq_len, "head_chunks": seq_len, "train": 0, "tune": 0}
    with pyllmc.GPT2.from_config(config, device=device, **sizes) as model:
        for _ in range(rounds):
            marks = [time.perf_counter()]
            for _ in SideBySide(model, prompt, AFTER + 1, range(rows)):
                marks.append(time.perf_counter())
            again.append(1e3 * (marks[1] - marks[0]))
            kept.append(1e3 * (marks[-1] - marks[1]) / AFTER)
    return again, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("descriptor", nargs="?", default="d12")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    config = pyllmc.GPT2Config.from_descriptor(arguments.descriptor)
    again, kept = measure(config, arguments.context, arguments.rounds, arguments.rows, arguments.device)
    found = {}
    for name, times in (("again", again), ("kept", kept)):
        found[name] = {"median": statistics.median(times), "least": min(times), "most": max(times)}
        print(f"{name:>6} {found[name]['median']:8.2f} ms a token  [{min(times):.2f}, {max(times):.2f}]")
    found["ratio"] = found["again"]["median"] / found["kept"]["median"]
    print(f" ratio {found['ratio']:8.1f}")
    print(json.dumps({**vars(arguments), **found}))


if __name__ == "__main__":
    sys.exit(status_of("tests.bench.generation", main, "interrupted"))

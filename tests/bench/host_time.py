"""What a step costs the host: the time of each call of a training loop, beside a GPU or with Python alone.

    python -m tests.bench.host_time d12 --batch 4              # on a GPU: medians over the steps, caches as they are
    python -m tests.bench.host_time d12 --batch 4 graph=0      # with an engine option changed
    python -m tests.bench.host_time --python                   # anywhere: the engine's calls replaced by nothing

--python empties the caches before each step, as a step's wait for the device does; only Python's own part is left.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import pyllmc
from pyllmc.ab.variants import parse_variant
from pyllmc.batches import Slot
from pyllmc.exits import status_of
from pyllmc.feed import Feed
from pyllmc.loader import TokenLoader
from pyllmc.shards import write_shard

PARTS = ("get", "micro_step", "update", "refill")
IDLE = ("llmc_micro_step", "llmc_update", "llmc_result", "llmc_slot_release")


class Timed:
    """Microseconds of each part of each step."""

    def __init__(self):
        self.us = {part: [] for part in PARTS}

    def call(self, part, function, *args, **named):
        began = time.perf_counter_ns()
        out = function(*args, **named)
        self.us[part].append((time.perf_counter_ns() - began) / 1e3)
        return out

    def report(self, skip):
        kept = {part: times[skip:] for part, times in self.us.items() if times}
        step = [sum(parts) for parts in zip(kept["micro_step"], kept["update"], strict=True)]
        for name, times in [*kept.items(), ("micro_step + update", step)]:
            low, *_, high = statistics.quantiles(times, n=10)
            print(f"{name:20s} {statistics.median(times):8.1f} us  [{low:.1f}, {high:.1f}]  least {min(times):.1f}")


def beside_a_gpu(args):
    options = parse_variant(" ".join(args.options)).options
    config = pyllmc.GPT2Config.from_descriptor(args.model)
    tokens = np.random.default_rng(0).integers(0, config.vocab, 8 * args.batch * args.seq_len + 1)
    timed, waiting = Timed(), []
    with tempfile.TemporaryDirectory() as folder:
        write_shard(Path(folder) / "random_000000.bin", tokens)
        with (
            TokenLoader(f"{folder}/*.bin", args.batch, args.seq_len, vocab=config.vocab) as loader,
            pyllmc.GPT2.from_config(config, batch=args.batch, seq_len=args.seq_len, device="cuda", **options) as model,
        ):
            feed = Feed(model, loader, late=True)
            try:
                for _ in range(args.steps):
                    slot, _ = timed.call("get", feed.get)
                    timed.call("micro_step", model.micro_step, slot)
                    waiting.append(timed.call("update", model.update, lr=1e-4, weight_decay=0.1, grad_clip=1.0))
                    timed.call("refill", feed.refill)
                    if len(waiting) > 2:
                        waiting.pop(0).result()
            finally:
                feed.close()
    print(f"{args.model}, B = {args.batch}, T = {args.seq_len}, {model.device}, {args.steps} steps {' '.join(args.options)}")
    timed.report(skip=10)


class WithoutEngine:
    """The library's functions, of which the ones in IDLE do nothing."""

    def __init__(self, lib):
        self._lib = lib

    def __getattr__(self, name):
        function = (lambda *_: 0) if name in IDLE else getattr(self._lib, name)
        setattr(self, name, function)
        return function


def python_alone(args):
    config, timed = pyllmc.GPT2Config(1, 1, 8, 257, 16), Timed()
    caches = np.ones(6_000_000)  # 48 MB
    with pyllmc.GPT2.from_config(config, batch=1, seq_len=8, device="cpu") as model:
        engine, model.library._lib = model.library._lib, WithoutEngine(model.library._lib)
        try:
            for _ in range(args.steps):
                slot = Slot(model.handle, 0, *np.zeros((2, 1, 8), np.int32))
                slot._state = "submitted"
                if not args.warm:
                    caches.sum()
                timed.call("micro_step", model.micro_step, slot)
                timed.call("update", model.update, lr=1e-4, weight_decay=0.1, grad_clip=1.0)
        finally:
            model.library._lib = engine
    print(f"Python alone, {args.steps} steps, {'caches warm' if args.warm else 'caches emptied before each'}")
    timed.report(skip=10)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.host_time", description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="d12")
    parser.add_argument("options", nargs="*", help="engine options, such as graph=0")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--python", action="store_true", help="without an engine")
    parser.add_argument("--warm", action="store_true", help="--python with the caches as they are")
    args = parser.parse_intermixed_args()
    python_alone(args) if args.python else beside_a_gpu(args)


if __name__ == "__main__":
    sys.exit(status_of("tests.bench.host_time", main, "interrupted"))

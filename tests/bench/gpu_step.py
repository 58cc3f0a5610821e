"""Step time of a workload on a GPU: all switches on, and each one off against it, in ABBA blocks.

    python -m tests.bench.gpu_step d12 --batch 4            # all on
    python -m tests.bench.gpu_step d12 --batch 4 --each-switch
    python -m tests.bench.gpu_step d12 --batch 4 --against head_chunks=4 --against gelu_fusion=0

A block is `--steps` steps by the host's clock with one wait at its end; a figure is the median over
blocks with the smallest and the largest. The last line is JSON.
"""

import argparse
import json
import statistics
import time

import numpy as np

import pyllmc

OFF = [{"streams": 1}, {"graph": 0}, {"prefetch": 0}, {"prefetch": 3}, {"gelu_fusion": 0}, {"gelu_fusion": 1}, {"deterministic": 1},
       {"recompute": 1}, {"attention": 2}, {"lag": 0}]


def parse(text):
    return {name: int(value) for name, value in (part.split("=") for part in text.split(","))}


class Runner:
    """A model, its batches, and blocks of steps on it."""

    def __init__(self, descriptor, batch, seq_len, options):
        options = dict(options)
        self.lag = options.pop("lag", 2)
        config = pyllmc.GPT2Config.from_descriptor(descriptor)
        self.model = pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cuda", **options)
        rng = np.random.default_rng(0)
        self.batches = [rng.integers(0, config.vocab, (2, batch, seq_len), dtype=np.int32) for _ in range(4)]

    def block(self, steps):
        """Milliseconds a step: by the host's clock, and the median of the device's own."""
        pending, device, host = [], [], 0.0
        self.model.synchronize()
        start = time.perf_counter()
        for i in range(steps):
            inputs, targets = self.batches[i % len(self.batches)]
            begin = time.perf_counter()
            pending.append(self.model.step(inputs, targets, lr=1e-4))
            host += time.perf_counter() - begin
            if len(pending) > self.lag:
                device.append(pending.pop(0).result().device_ms)
        self.model.synchronize()
        wall = 1e3 * (time.perf_counter() - start) / steps
        device += [handle.result().device_ms for handle in pending]
        return wall, statistics.median(device), 1e6 * host / steps


def summary(blocks):
    walls = [b[0] for b in blocks]
    return {"ms": statistics.median(walls), "low": min(walls), "high": max(walls), "device_ms": statistics.median(b[1] for b in blocks),
            "host_us": statistics.median(b[2] for b in blocks)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("descriptor")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=4, help="ABBA rounds, two blocks of each side")
    parser.add_argument("--base", type=parse, default={}, help="options of the all-on side, as in head_chunks=4,tf32=0")
    parser.add_argument("--against", type=parse, action="append", default=[])
    parser.add_argument("--each-switch", action="store_true")
    args = parser.parse_args()

    start = time.perf_counter()
    base = Runner(args.descriptor, args.batch, args.seq_len, args.base)
    base.block(5)
    started = time.perf_counter() - start
    rows = []
    print(f"{args.descriptor} B={args.batch} T={args.seq_len}: started in {started:.1f} s; {base.model.notes() or 'no notes'}", flush=True)
    for variant in args.against + (OFF if args.each_switch else []) or [None]:
        sides = {"on": base}
        if variant is not None:
            sides["off"] = Runner(args.descriptor, args.batch, args.seq_len, {**args.base, **variant})
        blocks = {name: [] for name in sides}
        for runner in sides.values():
            runner.block(10)
        for _ in range(args.blocks):
            for name in [*sides, *reversed(sides)]:
                blocks[name].append(sides[name].block(args.steps))
        row = {"variant": variant, **{name: summary(b) for name, b in blocks.items()}}
        if variant is not None:
            row["ratio"] = row["off"]["ms"] / row["on"]["ms"]
            sides["off"].model.close()
        rows.append(row)
        for name in sides:
            s = row[name]
            label = "all on" if name == "on" else ",".join(f"{k}={v}" for k, v in variant.items())
            spread = f"{s['ms']:9.3f} ms [{s['low']:.3f}, {s['high']:.3f}]"
            ratio = f"  x{row['ratio']:.4f}" if name == "off" else ""
            print(f"  {label:24s} {spread}  device {s['device_ms']:.3f}  host {s['host_us']:.0f} us{ratio}", flush=True)
    print(json.dumps({"workload": args.descriptor, "batch": args.batch, "seq_len": args.seq_len, "start_s": started, "rows": rows}))


if __name__ == "__main__":
    main()

"""Tokens a second and device memory over the batch size, beside the reference's; measured, then drawn.

    python -m tests.bench.batch_sizes d12 -o plots/batch_sizes.json      # on a GPU; draws the .png beside it
    python -m tests.bench.batch_sizes --draw plots/batch_sizes.json

The reference's figures stand in plots/llmc_batch_sizes.json: llm.c at f1e2ace with cuDNN and its best flags, on
the same kind of GPU. Blocks of steps by the host's clock, one wait at the end of each; random tokens.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import pyllmc
from pyllmc.exits import status_of
from pyllmc.figures import INK, REFERENCE, TRAIN, style

PLOTS = Path(__file__).resolve().parents[2] / "plots"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = 0.4  # of a block
BLOCKS = 7


def measure(descriptor, batch, seq_len):
    """One row: milliseconds of each block, bytes in use on the device, seconds from the call to the fifth step."""
    config = pyllmc.GPT2Config.from_descriptor(descriptor)
    rng = np.random.default_rng(0)
    data = rng.integers(0, config.vocab, (4, 2, batch, seq_len), dtype=np.int32)
    start = time.perf_counter()
    with pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cuda") as model:

        def block(steps):
            begin = time.perf_counter()
            for i in range(steps):
                model.step(*data[i % len(data)], lr=1e-4)
            model.synchronize()
            return 1e3 * (time.perf_counter() - begin) / steps

        once = block(5)
        started = time.perf_counter() - start
        once = min(once, block(3))
        steps = max(3, int(1e3 * SECONDS / once))
        blocks = [block(steps) for _ in range(BLOCKS)]
        plan = model.memory
        used = plan.device_total - plan.device_free
    return {"batch": batch, "ms": blocks, "used_bytes": used, "planned_bytes": plan.total, "start_s": started}


def draw(result, path):
    reference = json.loads((PLOTS / "llmc_batch_sizes.json").read_text())
    figure = Figure(figsize=(9, 4.2), dpi=130, layout="constrained", facecolor="white")
    speed, memory = figure.subplots(1, 2, width_ratios=[1.6, 1])
    T, rows = result["seq_len"], result["rows"]
    batches = [row["batch"] for row in rows]
    tokens = [[row["batch"] * T / ms for ms in row["ms"]] for row in rows]  # thousands a second
    middle = [statistics.median(each) for each in tokens]
    spread = [[m - min(each) for m, each in zip(middle, tokens, strict=True)],
              [max(each) - m for m, each in zip(middle, tokens, strict=True)]]  # fmt: skip
    theirs = [(row["batch"], row["batch"] * T / row["ms"]) for row in reference["rows"]]
    speed.errorbar(batches, middle, yerr=spread, color=TRAIN, marker="o", ms=5, lw=1.8, capsize=3, label="pyllmc")
    speed.plot(*zip(*theirs, strict=True), color=REFERENCE, marker="s", ms=5, lw=1.5, ls=(0, (5, 2)), label="llm.c")
    for (batch, other), own, above in zip(theirs, middle, spread[1], strict=True):
        speed.annotate(f"{own / other:.2f}x", (batch, own + above), xytext=(0, 6), textcoords="offset points", ha="center",
                       color=INK, fontsize=8.5)  # fmt: skip
    speed.set_ylabel("thousand tokens a second", color=INK)
    speed.set_ylim(0, 1.12 * max(max(each) for each in tokens))
    memory.plot(batches, [row["used_bytes"] / 2**30 for row in rows], color=TRAIN, marker="o", ms=5, lw=1.8, label="pyllmc")
    memory.plot([row["batch"] for row in reference["rows"]], [row["gb"] for row in reference["rows"]], color=REFERENCE,
                marker="s", ms=5, lw=1.5, ls=(0, (5, 2)), label="llm.c")  # fmt: skip
    memory.set_yscale("log", base=2)
    memory.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    memory.set_ylabel("GiB in use on the device", color=INK)
    for axes in (speed, memory):
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(b) for b in batches])
        axes.minorticks_off()
        axes.set_xlabel("batch size B", color=INK)
        axes.legend(frameon=False, loc="upper left" if axes is memory else "lower right", labelcolor=INK)
        style(axes)
        axes.margins(x=0.06)
    figure.suptitle(f"{result['workload']}, T = {T}, bf16, {result['device']}", x=0.01, ha="left", fontsize=12,
                    fontweight="bold", color=INK)  # fmt: skip
    FigureCanvasAgg(figure).print_png(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("descriptor", nargs="?", default="d12")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")], default=BATCHES)
    parser.add_argument("-o", type=Path, default=PLOTS / "batch_sizes.json")
    parser.add_argument("--draw", type=Path, help="draw this result again, measure nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads(args.draw.read_text()), args.draw.with_suffix(".png"))
    rows = []
    for batch in args.batches:
        row = measure(args.descriptor, batch, args.seq_len)
        rows.append(row)
        ms = row["ms"]
        print(f"B = {batch:4}  {statistics.median(ms):8.3f} ms [{min(ms):.3f}, {max(ms):.3f}]  "
              f"{row['used_bytes'] / 2**30:6.2f} GiB  start {row['start_s']:.1f} s", flush=True)  # fmt: skip
    with pyllmc.GPT2.from_config(pyllmc.GPT2Config(1, 1, 64, 64, 8), batch=1, seq_len=8, device="cuda") as model:
        device = model.device_info["name"]
    result = {"workload": args.descriptor, "seq_len": args.seq_len, "device": device, "rows": rows}
    args.o.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, args.o.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(status_of("tests.bench.batch_sizes", main, "interrupted"))

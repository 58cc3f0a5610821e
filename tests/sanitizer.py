"""Runs small models under compute-sanitizer: memcheck, initcheck, racecheck, switches on and off.

    python tests/sanitizer.py            all three; exit status 1 if one finds an error

What is left out, and why: initcheck does not see what the copy engine of sm_90 writes, so it runs on fp32
products and the engine's own attention. racecheck does not know the hardware barriers that cuDNN's kernels
use and reports them, so it runs on own attention too; it is slow, so on one layer. In bf16 it watches the
library's products as well: where it leaves some kernels out, they fault under it.
"""

import shutil
import subprocess
import sys

ON = {"streams": 4, "graph": 1, "prefetch": 3, "deterministic": 0, "tune": 0}
OFF = {"streams": 1, "graph": 0, "prefetch": 0, "deterministic": 1, "tune": 0}
RUNS = [
    ("memcheck", "fp32", []),
    ("memcheck", "bf16", []),
    ("initcheck", "fp32", []),
    ("racecheck", "fp32", ["--kernel-name", "kns=llmc"]),
    ("racecheck", "bf16", []),
]


def worker(tool, precision):
    """Trains, evaluates and generates on every path that the tool is to see."""
    import numpy as np

    import pyllmc

    races = tool == "racecheck"
    small = pyllmc.GPT2Config(layers=1 if races else 2, heads=2, channels=128, vocab=300, context=128), 2, 128
    odd = pyllmc.GPT2Config(layers=1, heads=3, channels=33, vocab=257, context=9), 3, 7
    rng = np.random.default_rng(0)
    for attention in ("own", "auto") if tool == "memcheck" else ("own",):
        for switches in ({**ON, "graph": 0} if races else ON, {**OFF, "recompute": 2, "head_chunks": 3}):
            for config, batch, seq_len in (small, odd):
                options = {**switches, "precision": precision, "attention": attention, "tf32": 0}
                with pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cuda", **options) as model:
                    data = rng.integers(0, config.vocab, (4, 2, batch, seq_len), dtype=np.int32)
                    for _ in range(2 if races else 4):
                        loss = model.step(data[:2, 0], data[:2, 1], lr=1e-3).result().loss
                    model.eval_loss(*data[3])
                    model.generate([1, 2, 3], 5)
                with pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cuda", train=0, **options) as model:
                    model.eval_loss(*data[3])
                    model.generate([1, 2, 3], 5)
                    print(tool, precision, attention, config.channels, loss, flush=True)


def main():
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        print("compute-sanitizer is not installed: memcheck, initcheck and racecheck are not run")
        return 0
    failed = []
    for tool, precision, options in RUNS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5", *options,
                   sys.executable, __file__, tool, precision]  # fmt: skip
        status = subprocess.run(command).returncode
        print(f"{tool} {precision}: {'clean' if status == 0 else f'FAILED (exit status {status})'}", flush=True)
        if status:
            failed.append((tool, precision))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(worker(*sys.argv[1:]) if len(sys.argv) > 1 else main())

"""Runs small models under compute-sanitizer: memcheck, initcheck, racecheck, switches on and off.

    python tests/sanitizer.py            all three; exit status 1 if one finds an error

What is left out, and why: initcheck does not see what the copy engine of sm_90 writes, so it runs on fp32
products and the engine's own attention; racecheck looks at this project's kernels alone (the libraries' own
use hardware barriers it does not know), less the tensor-core attention, under which the tool itself fails
("internal error"); memcheck covers that kernel, and tests of repeatability its barriers.
"""

import shutil
import subprocess
import sys

ON = {"streams": 4, "graph": 1, "prefetch": 3, "deterministic": 0, "tune": 0}
OFF = {"streams": 1, "graph": 0, "prefetch": 0, "deterministic": 1, "tune": 0}
OURS = ["--kernel-name", "kns=llmc"]
RUNS = [
    ("memcheck", "fp32", []),
    ("memcheck", "bf16", []),
    ("initcheck", "fp32", []),
    ("racecheck", "fp32", OURS),
    ("racecheck", "bf16", OURS),
]


def worker(tool, precision):
    """Trains, evaluates and generates on every path that the tool is to see."""
    import numpy as np

    import pyllmc

    small = pyllmc.GPT2Config(layers=2, heads=2, channels=128, vocab=300, context=64)
    odd = pyllmc.GPT2Config(layers=1, heads=3, channels=33, vocab=257, context=9)
    rng = np.random.default_rng(0)
    # Generation and odd head sizes need the engine's own attention.
    all_but_own = tool == "racecheck" and precision == "bf16"
    for attention in {"initcheck": ("own",), "racecheck": ("auto",)}.get(tool, ("own", "auto")):
        for switches in (ON, {**OFF, "recompute": 2, "head_chunks": 3}):
            for config, batch, seq_len in ((small, 2, 64),) if all_but_own else ((small, 2, 64), (odd, 3, 7)):
                options = {**switches, "precision": precision, "attention": attention, "tf32": 0}
                with pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cuda", **options) as model:
                    data = rng.integers(0, config.vocab, (4, 2, batch, seq_len), dtype=np.int32)
                    for _ in range(4):
                        loss = model.step(data[:2, 0], data[:2, 1], lr=1e-3).result().loss
                    model.eval_loss(*data[3])
                    if not all_but_own:
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

#!/usr/bin/env python3
"""A stand-in for llm.c's trainer: takes its flags, prints in its format, and really trains, on the CPU engine.

FAKE says how it fails: exit, garbage, missing, short, killed, hang, nan, zero, silent, wrong (losses), other (B). FAKE_LOG
gets the process id and the arguments of every start.
"""

import os
import sys
import time

mode = os.environ.get("FAKE", "")
if "FAKE_LOG" in os.environ:
    with open(os.environ["FAKE_LOG"], "a") as log:
        print(os.getpid(), *sys.argv[1:], file=log, flush=True)
if mode == "hang":
    time.sleep(600)
if mode == "silent":
    sys.exit(0)
if mode == "garbage":
    print("step 1/3 loss is fine, I think")
    sys.exit(0)

from pyllmc import GPT2, TokenLoader  # noqa: E402

flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
B, T, steps = int(flags["-b"]), int(flags["-t"]), int(flags["-x"])
shown = {
    "micro batch size B": B + (mode == "other"), "sequence length T": T,
    "learning rate (LR)": f"{float(flags['-l']):e}", "weight decay": f"{float(flags['-c']):e}",
    "use_master_weights": "enabled" if flags["-w"] == "1" else "disabled", "gelu_fusion": flags["-ge"],
    "recompute": flags["-r"], "precision": "TF32" if flags["-f"] == "1" else "FP32",
}  # fmt: skip
print("Multi-GPU support is disabled. Using a single GPU.")
for name, value in shown.items():
    print(f"| {name:<21} | {value!s:<50} |")
if mode == "exit":
    print("Error: Failed to open file 'x.bin' at train_gpt2.cu:10", file=sys.stderr)
    sys.exit(3)
with (
    GPT2.from_checkpoint(flags["-e"], batch=B, seq_len=T, device="cpu") as model,
    TokenLoader(flags["-i"], B, T, shuffle=True) as data,
):
    print(f"| {'num_parameters':<21} | {model.config.num_params:<50} |")
    print("val loss 5.600000")
    print("evaluating HellaSwag: 10/79\revaluating HellaSwag: 20/79\r", end="")
    for step in range(1, steps + 1):
        began = time.perf_counter()
        result = model.step(*data.next_batch(), lr=float(flags["-l"]), weight_decay=float(flags["-c"])).result()
        ms = 1e3 * (time.perf_counter() - began)
        loss = result.loss + (0.5 if mode == "wrong" and step == 3 else 0)
        if mode == "nan" and step == 4:
            loss = float("nan")
        if mode == "zero" and step == 4:
            ms = 0
        if mode == "killed" and step == 4:
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
        if mode == "short" and step == steps or mode == "missing" and step == 4:
            continue
        print(
            f"step {step:4d}/{steps} | loss {loss:7.6f} (+nanz)| norm {result.grad_norm:6.4f} (+nanz)| "
            f"lr {float(flags['-l']):.2e} | {ms:.2f} ms | -100.0% bf16 MFU | {1e3 * B * T / max(ms, 1e-3):.0f} tok/s"
        )
print("val loss 5.500000")
print("generating:\n---\nstep 1/3 | loss of faith\n---")
print("total average iteration time: 1.234567 ms")

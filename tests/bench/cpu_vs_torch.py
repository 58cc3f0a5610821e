"""A training step on the CPU: this engine against a plain PyTorch GPT-2, interleaved on the same cores.

Each side runs in a process of its own, so that their thread pools do not meet; the other one sleeps
meanwhile. Rounds go ours, torch, torch, ours, ... (ABBA), so that a machine that slows down slows both.
A step is forward, backward, gradient clipping and AdamW in fp32. The last line printed is JSON.

    python -m tests.bench.cpu_vs_torch [--descriptor d12 --batch 4 --seq-len 64 --rounds 8 --steps 2]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

VOCAB = 50257
HYPER = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}


def batch_of(arguments, step):
    """The same token ids on both sides without a library: a linear congruential sequence."""
    x, ids = 12345 + step, []
    for _ in range(arguments.batch * arguments.seq_len + 1):
        x = (x * 1103515245 + 12345) % 2**31
        ids.append((x >> 8) % 1000)
    return ids[:-1], ids[1:]


def ours(arguments):
    """A function that takes a step and returns its loss, a name, the first loss."""
    import numpy as np

    from pyllmc import GPT2

    shape = arguments.batch, arguments.seq_len
    model = GPT2.from_descriptor(
        arguments.descriptor, batch=shape[0], seq_len=shape[1], device="cpu", threads=arguments.threads
    )
    beta1, beta2 = HYPER["betas"]

    def step(i):
        inputs, targets = (np.array(x, np.int32).reshape(shape) for x in batch_of(arguments, i))
        handle = model.step(
            inputs, targets, lr=HYPER["lr"], beta1=beta1, beta2=beta2, eps=HYPER["eps"],
            weight_decay=HYPER["weight_decay"], grad_clip=HYPER["clip"],
        )  # fmt: skip
        return handle.result().loss

    return step, "pyllmc", step(0)


def torch_model(arguments):
    import torch
    from torch import nn
    from torch.nn import functional as F

    depth = {"d6": (6, 384, 6), "d12": (12, 768, 12), "d24": (24, 1024, 16)}[arguments.descriptor]
    layers, channels, heads = depth

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
            self.qkv, self.project = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
            self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

        def forward(self, x):
            qkv = self.qkv(self.ln1(x)).unflatten(2, (3, heads, channels // heads))
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(mixed.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCAB, channels), nn.Embedding(1024, channels)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])
            self.lnf = nn.LayerNorm(channels)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, targets):
            x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
            for layer in self.layers:
                x = layer(x)
            logits = F.linear(self.lnf(x), self.wte.weight)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    torch.manual_seed(42)
    return Model()


def torch_side(arguments):
    """As ours; of PyTorch's two quick AdamW implementations the one that is quicker here."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = torch_model(arguments)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": HYPER["weight_decay"]},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]

    def optimizer(kind):
        return torch.optim.AdamW(groups, lr=HYPER["lr"], betas=HYPER["betas"], eps=HYPER["eps"], **{kind: True})

    def gradients(i):
        inputs, targets = (torch.tensor(x).view(arguments.batch, -1) for x in batch_of(arguments, i))
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), HYPER["clip"])
        return loss.item()

    def seconds(optimizer):
        optimizer.step()  # makes its state
        spent = []
        for _ in range(3):
            start = time.process_time()
            optimizer.step()
            spent.append(time.process_time() - start)
        return min(spent)

    first_loss = gradients(0)
    kind = min(("fused", "foreach"), key=lambda kind: seconds(optimizer(kind)))
    chosen = optimizer(kind)

    def step(i):
        chosen.zero_grad(set_to_none=True)
        loss = gradients(i)
        chosen.step()
        return loss

    return step, f"torch {torch.__version__} ({kind} AdamW)", first_loss


def work(arguments):
    """Worker: a number of steps per line of stdin, answered with the seconds of each as JSON."""
    step, name, first_loss = {"ours": ours, "torch": torch_side}[arguments.worker](arguments)
    print(json.dumps({"name": name, "first_loss": first_loss}), flush=True)
    for line in sys.stdin:
        wall, cpu = [], []
        for i in range(int(line)):
            start, start_cpu = time.perf_counter(), time.process_time()
            step(i)
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
        print(json.dumps({"wall": wall, "cpu": cpu}), flush=True)


class Side:
    def __init__(self, which, python):
        command = [python, "-m", "tests.bench.cpu_vs_torch", "--worker", which, *sys.argv[1:]]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.wall, self.cpu = [], []
        hello = self.answer()
        self.name = hello["name"]
        print(f"{self.name}: first loss {hello['first_loss']:.4f}", flush=True)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with status {self.process.wait()}")
        return json.loads(line)

    def run(self, steps, keep=True):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.answer()
        if keep:
            self.wall += answer["wall"]
            self.cpu += answer["cpu"]

    def summary(self):
        return {
            "name": self.name,
            "median_s": statistics.median(self.wall),
            "min_s": min(self.wall),
            "max_s": max(self.wall),
            "median_cpu_s": statistics.median(self.cpu),
            "steps": len(self.wall),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--descriptor", default="d12")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="of each side; 0: all")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="per side and round")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--worker", choices=["ours", "torch"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    sides = Side("ours", sys.executable), Side("torch", arguments.torch_python)
    for side in sides:
        side.run(2, keep=False)  # warm-up
    for i in range(arguments.rounds):
        for side in sides if i % 2 == 0 else sides[::-1]:
            side.run(arguments.steps)
    a, b = (side.summary() for side in sides)
    for s in (a, b):
        print(
            f"{s['name']:40s} median {s['median_s']:.3f} s, {s['min_s']:.3f} to {s['max_s']:.3f} s, "
            f"CPU {s['median_cpu_s']:.3f} s, {s['steps']} steps"
        )
    what = f"{arguments.descriptor} B={arguments.batch} T={arguments.seq_len} fp32"
    print(
        f"{what}: {b['median_s'] / a['median_s']:.2f} times as fast (best to best "
        f"{b['min_s'] / a['min_s']:.2f}, by CPU time {b['median_cpu_s'] / a['median_cpu_s']:.2f})"
    )
    print(
        json.dumps(
            {
                "what": what,
                "cores": len(os.sched_getaffinity(0)),
                "load": os.getloadavg()[0],
                "machine": platform.machine(),
                "ours": a,
                "torch": b,
                "speedup": b["median_s"] / a["median_s"],
            }
        )
    )


if __name__ == "__main__":
    main()

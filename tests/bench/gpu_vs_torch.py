"""A training step on a GPU: this engine against a plain PyTorch GPT-2, in interleaved blocks of one process.

PyTorch's side is what its users write: torch.compile, scaled_dot_product_attention, bf16 autocast over fp32
weights, fused AdamW, the gradient norm clipped. Blocks go ours, torch, torch, ours, ... and are timed by the
host's clock with one wait at their end. Random tokens. The last line printed is JSON.

    python -m tests.bench.gpu_vs_torch d12 --batch 4
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import pyllmc
from pyllmc.exits import status_of

HYPER = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.project = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.expand, self.contract = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.project(mixed)
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Network(nn.Module):
    """The vocabulary padded to a multiple of 128, as is the custom."""

    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.padded_vocab, config.channels)
        self.positions = nn.Embedding(config.context, config.channels)
        self.blocks = nn.ModuleList(Block(config.channels, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.channels)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def torch_step(config, batches):
    """A function that enqueues step i, and one that waits."""
    torch.set_float32_matmul_precision("high")
    network = Network(config).cuda()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True, **HYPER)
    compiled = torch.compile(network)
    data = [torch.from_numpy(b.astype(np.int64)).cuda() for b in batches]

    def step(i):
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(*data[i % len(data)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, torch.cuda.synchronize


def own_step(config, batches):
    shape = batches[0].shape[1:]
    model = pyllmc.GPT2.from_config(config, batch=shape[0], seq_len=shape[1], device="cuda")
    beta1, beta2 = HYPER["betas"]

    def step(i):
        inputs, targets = batches[i % len(batches)]
        model.step(inputs, targets, lr=HYPER["lr"], beta1=beta1, beta2=beta2, weight_decay=HYPER["weight_decay"])

    return step, model.synchronize


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("descriptor")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--rounds", type=int, default=4, help="of two blocks a side")
    args = parser.parse_args()

    config = pyllmc.GPT2Config.from_descriptor(args.descriptor)
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, config.vocab, (2, args.batch, args.seq_len), dtype=np.int32) for _ in range(4)]
    sides = {"pyllmc": own_step(config, batches), f"PyTorch {torch.__version__}": torch_step(config, batches)}

    def block(step, wait):
        wait()
        start = time.perf_counter()
        for i in range(args.steps):
            step(i)
        wait()
        return 1e3 * (time.perf_counter() - start) / args.steps

    for side in sides.values():
        block(*side)
    times = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name in [*sides, *reversed(sides)]:
            times[name].append(block(*sides[name]))
    print(f"{args.descriptor}, B = {args.batch}, T = {args.seq_len}, {torch.cuda.get_device_name()}")
    for name, found in times.items():
        print(f"  {name:16} {statistics.median(found):8.2f} ms [{min(found):.2f}, {max(found):.2f}]")
    print(json.dumps({"workload": args.descriptor, "batch": args.batch, "seq_len": args.seq_len, "ms": times}))


if __name__ == "__main__":
    sys.exit(status_of("tests.bench.gpu_vs_torch", main, "interrupted"))

"""A made-up step for tests of the profiler: spans as an engine on a GPU would record them, and their kernels."""

import random

from pyllmc.inspection import Span
from pyllmc.profile.alignment import Kernel

FORWARD = (
    ("qkv", 90), ("attention", 60), ("attproj", 35), ("layernorm 2", 14), ("fc", 130), ("fcproj", 120), ("layernorm 1", 14),
)  # fmt: skip
BACKWARD = (
    ("fcproj dweight", 115), ("fcproj dinput", 140), ("fc dweight", 110), ("fc dinput", 118), ("norm 2 bwd", 17),
    ("attproj dweight", 30), ("attproj dinput", 32), ("attention bwd", 170), ("qkv dweight", 85), ("qkv dinput", 80), ("norm 1 bwd", 17),
)  # fmt: skip
GAP_US = 2.5  # between two spans: their events


def layered(rng, names, layer, at):
    """Spans one after another from `at` on, of jittered length; returns (spans, end)."""
    spans = []
    for name, us in names:
        end = at + us * rng.uniform(0.9, 1.1)
        spans.append(Span(name, "compute", layer, at, end))
        at = end + GAP_US
    return spans, at


def step(layers=4, seed=0):
    """Spans of a step on four lanes; the next batch uploads while it computes."""
    rng = random.Random(seed)
    spans, at = layered(rng, [("embedding", 20)], None, 3.0)
    first, at = layered(rng, [("layernorm 1", 12)], 0, at)
    spans += first
    for layer in range(layers):
        more, at = layered(rng, FORWARD, layer, at)
        spans += more
    more, at = layered(rng, [("logits", 700), ("classifier", 300), ("dlnf", 650), ("dwte", 640), ("final norm bwd", 20)], None, at)
    spans += more
    head = next(span for span in spans if span.name == "classifier")
    spans.append(Span("mean loss", "loss", None, head.end_us + 4, head.end_us + 12))
    for layer in reversed(range(layers)):
        more, at = layered(rng, BACKWARD, layer, at)
        spans += more
    at += 35  # the other lanes are waited for
    more, at = layered(rng, [("embedding bwd", 25), ("gradient norm", 60), ("gate", 4)], None, at)
    gate = more[-1]
    spans += more
    spans.append(Span("download result", "loss", None, gate.end_us + 3, gate.end_us + 6))
    more, at = layered(rng, [("adamw", 300)], None, at)
    spans += more
    upload = spans[5].start_us
    spans += [
        Span("upload inputs", "inputs", None, upload, upload + 14),
        Span("token index", "inputs", None, upload + 16, upload + 60),
        Span("upload targets", "targets", None, upload + 5, upload + 18),
    ]
    return spans


def kernels_of(spans, offset_us, seed=0, streams=True):
    """(kernels, index of each one's span): two or three for matrix products, one for the rest, with launch gaps.

    offset_us: of the kernels' clock. streams: each lane on a stream of its own, else all on one.
    """
    rng = random.Random(seed)
    lanes = {"compute": 13, "inputs": 14, "targets": 15, "loss": 16}
    found = []
    for index, span in enumerate(spans):
        parts = 2 if "dweight" in span.name else 1
        edges = [span.start_us + rng.uniform(0.8, 1.6)]
        length = (span.end_us - rng.uniform(0.4, 1.0) - edges[0]) / parts
        for part in range(parts):
            start = edges[0] + part * length
            end = start + max(length - rng.uniform(0.2, 0.8), 0.1)
            name = f"{'product' if parts == 2 and part == 0 else span.name.split(' ')[0].strip(',')}_kernel"
            found.append((Kernel(name, start + offset_us, end + offset_us, lanes[span.lane] if streams else 7), index))
    found.sort(key=lambda pair: pair[0].start_us)
    return [kernel for kernel, _ in found], [index for _, index in found]

"""The GPU never waits for the host: no synchronising call in the loop, no idle time between steps."""

import time

import numpy as np
import pytest
import runtime_calls

import pyllmc

pytestmark = pytest.mark.gpu

# Calls that make the host wait for the device.
WAITS = {"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpy2D", "cudaMemset",
         "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaMallocHost"}


def steps(model, batches, count, lag):
    """Runs `count` steps, taking each result `lag` steps later; returns the results."""
    pending, done = [], []
    for i in range(count):
        inputs, targets = batches[i % len(batches)]
        pending.append(model.step(inputs, targets, lr=1e-4))
        if len(pending) > lag:
            done.append(pending.pop(0).result())
    return done + [handle.result() for handle in pending]


def make(cuda, layers, heads, channels, vocab, batch, seq_len, **options):
    config = pyllmc.GPT2Config(layers=layers, heads=heads, channels=channels, vocab=vocab, context=seq_len)
    model = pyllmc.GPT2.from_config(config, batch=batch, seq_len=seq_len, device=cuda, **options)
    rng = np.random.default_rng(1)
    batches = [tuple(rng.integers(0, vocab, (batch, seq_len), dtype=np.int32) for _ in range(2)) for _ in range(4)]
    return model, batches


@pytest.mark.parametrize("graph", [0, 1])
def test_no_synchronising_call_in_50_steps(cuda, graph):
    model, batches = make(cuda, 2, 4, 64, 257, 2, 64, graph=graph)
    with model:
        steps(model, batches, 10, 2)
        try:
            with runtime_calls.counted() as calls:
                steps(model, batches, 50, 2)
        except OSError as error:
            pytest.skip(str(error))
        assert calls["cudaEventRecord"] >= 50, calls  # the counting works
        assert calls["cudaGraphLaunch"] == (200 if graph else 0)  # forward, head, backward, update
        # Each result read from the ring may wait for its own step's end, and for nothing else.
        waits = {name: count for name, count in calls.items() if name in WAITS}
        assert set(waits) <= {"cudaEventSynchronize"}, waits
        assert waits.get("cudaEventSynchronize", 0) <= 50


def test_the_device_is_not_idle_between_steps(cuda):
    """d12, B=4, T=1024: wall time of the loop against the sum of the steps' own device times."""
    model, batches = make(cuda, 12, 12, 768, 50257, 4, 1024)
    with model:
        steps(model, batches, 20, 2)
        idle = []
        for _ in range(3):
            start = time.perf_counter()
            results = steps(model, batches, 100, 2)
            wall = time.perf_counter() - start
            # The first step starts on an idle device: its launch is not a gap between steps.
            idle.append(1 - sum(r.device_ms for r in results) / (1e3 * wall))
        assert sorted(idle)[1] < 0.01, idle


def test_a_timeline_covers_the_step_with_graphs_on(cuda):
    model, batches = make(cuda, 2, 4, 64, 257, 2, 64, graph=1)
    with model:
        steps(model, batches, 6, 1)
        model.arm_timeline()
        steps(model, batches, 3, 1)
        spans = model.timeline()
        assert {s.lane for s in spans} >= {"compute", "loss"}
        assert sum(s.name == "attention" for s in spans) == 2
        assert all(s.end_us >= s.start_us for s in spans)
        compute = sorted((s.start_us, s.end_us) for s in spans if s.lane == "compute")
        assert all(a_end <= b_start + 0.5 for (_, a_end), (b_start, _) in zip(compute, compute[1:], strict=False))


def test_a_timelines_graphs_are_made_before_they_are_launched(cuda):
    """Made between two launches, a graph would show as a gap in the step that is recorded."""
    model, batches = make(cuda, 2, 4, 64, 257, 2, 64, graph=1)
    with model:
        steps(model, batches, 6, 1)
        model.arm_timeline()
        try:
            with runtime_calls.listed() as calls:
                model.step(*batches[0], lr=1e-4).result()
        except OSError as error:
            pytest.skip(str(error))
        assert "graph" not in " ".join(model.notes())
    capture, launch = "cudaStreamBeginCapture", "cudaGraphLaunch"
    assert [name for name in calls if name in (capture, launch)] == [capture] * 3 + [launch] * 3 + [capture, launch]

"""What only a GPU can get wrong: precision, lanes, graphs, memory. Everything else runs on both backends elsewhere."""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections import deque

import numpy as np
import oracle
import pytest
from engine import ADAM_M, ADAM_V, BF16, FP32, GRAD, MASTER, PARAM, Engine, ffi, tiny_config
from test_golden import logged
from tolerance import limit

from pyllmc.config import GPT2Config
from pyllmc.formats import read_checkpoint, read_debug_state
from pyllmc.loader import TokenLoader

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

MIXED = {"precision": BF16, "master_weights": 1}
LANES = {"streams": 4, "graph": 1, "prefetch": 3}


def apart(found, expected):
    return {name: oracle.distance(found[name], expected[name]) for name in expected}


# -- precision


@pytest.mark.parametrize("attention", [0, 2], ids=["attention=auto", "attention=own"])
@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("gelu_fusion", [0, 1, 2])
def test_bf16_gradients(golden, attention, recompute, gelu_fusion):
    """Loss and every gradient of the reference batch, for each way of computing them."""
    checkpoint = read_checkpoint(golden / "tiny_fp32.bin")
    state = read_debug_state(golden / "tiny_debug_state.bin", checkpoint.config)
    how = {"attention": attention, "recompute": recompute, "gelu_fusion": gelu_fusion, "head_chunks": 1 + recompute}
    with Engine(checkpoint.config, *state.inputs.shape, "cuda", checkpoint.params, **MIXED, **how) as engine:
        logits = engine.logits(state.inputs)
        loss, grads = engine.loss_and_grads(state.inputs, state.targets)
    assert loss == pytest.approx(state.loss, abs=limit("bf16 loss", "cuda"))
    assert oracle.distance(logits, state.logits) <= limit("bf16 logits", "cuda")
    distances = apart(grads, state.grads)
    assert max(distances.values()) <= limit("bf16 grads", "cuda"), distances


def test_tf32_gradients(golden):
    checkpoint = read_checkpoint(golden / "tiny_fp32.bin")
    state = read_debug_state(golden / "tiny_debug_state.bin", checkpoint.config)
    with Engine(checkpoint.config, *state.inputs.shape, "cuda", checkpoint.params, tf32=1) as engine:
        loss, grads = engine.loss_and_grads(state.inputs, state.targets)
    assert loss == pytest.approx(state.loss, abs=1e-3)
    distances = apart(grads, state.grads)
    assert max(distances.values()) <= limit("tf32 grads", "cuda"), distances


def test_bf16_follows_the_fp32_run(golden):
    """All 41 training losses of the reference's fp32 run."""
    run = json.loads((golden / "tiny_cpu_run.json").read_text())
    checkpoint = read_checkpoint(golden / "tiny_fp32.bin")
    with (
        TokenLoader(golden / run["train"], 4, 64, shuffle=True) as data,
        Engine(checkpoint.config, 4, 64, "cuda", checkpoint.params, **MIXED) as engine,
    ):
        losses = [
            engine.step([data.next_batch()], step=step + 1, learning_rate=run["lr"], beta2=run["beta2"]).loss
            for step in range(41)
        ]
    np.testing.assert_allclose(losses, run["train_loss"], rtol=0, atol=limit("bf16 loss", "cuda"))


def test_bf16_follows_the_mid_run(golden):
    """The reference's 20 steps at a high learning rate, its vocabulary of 4200 included."""
    losses = logged(golden / "logs" / "mid_fp32_stdout.log")[0]
    checkpoint = read_checkpoint(golden / "mid_fp32.bin")
    with (
        TokenLoader(golden / "bytes_train_*.bin", 4, 64, shuffle=True) as data,
        Engine(checkpoint.config, 4, 64, "cuda", checkpoint.params, **MIXED) as engine,
    ):
        found = []
        for step in range(20):
            lr = oracle.cosine(step, peak=1e-3, steps=20, warmup=2, final=0.1)
            found.append(
                engine.step([data.next_batch()], step=step + 1, learning_rate=lr, weight_decay=0.1, grad_clip=1.0).loss
            )
    np.testing.assert_allclose(found, list(losses.values()), rtol=0, atol=limit("bf16 loss", "cuda"))


def bf16_steps_of_size(change, *, master, steps, **hyper):
    """Mean of a matrix of ones after `steps` updates."""
    config = tiny_config(layers=1, channels=64, vocab=11)
    params = oracle.random_params(config)
    params["fcw"] = np.ones_like(params["fcw"])
    batch = oracle.random_batch(config, 1, 4)
    with Engine(config, 1, 4, "cuda", params, precision=BF16, master_weights=master) as engine:
        for step in range(steps):
            engine.micro_step(*batch)
            if change:
                engine.write_one("fcw", np.full_like(params["fcw"], 0.5), GRAD)
            engine.result(engine.update(step=step + 1, **hyper))
        return float(engine.read_one("fcw").mean(dtype=np.float64))


@pytest.mark.parametrize("master", [0, 1])
def test_small_updates_are_not_lost(master):
    """A bf16 of 1.0 has neighbours 0.004 and 0.008 away: steps of 0.0006, and decay of 0.0001, must add up."""
    moved = 1 - bf16_steps_of_size(True, master=master, steps=100, learning_rate=6e-4)
    assert moved == pytest.approx(0.06, rel=0.05)
    shrunk = bf16_steps_of_size(False, master=master, steps=2000, learning_rate=1e-3, weight_decay=0.1, eps=1e6)
    assert 1 - shrunk == pytest.approx(1 - (1 - 1e-4) ** 2000, rel=0.05)


@pytest.mark.parametrize("channels, heads", [(80, 2), (96, 3), (160, 2), (1600, 25)])
@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_widths_off_the_beaten_track(channels, heads, precision):
    config = tiny_config(layers=1, channels=channels, heads=heads, vocab=300)
    params = oracle.random_params(config)
    if precision == BF16:
        params = {name: (p.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, p in params.items()}
    inputs, targets = oracle.random_batch(config, 2, 16)
    with Engine(config, 2, 16, "cuda", params, precision=precision) as engine:
        loss, grads = engine.loss_and_grads(inputs, targets)
    expected, expected_grads = oracle.loss_and_grads(params, inputs, targets, config)
    name = "grads" if precision == FP32 else "bf16 grads"
    assert loss == pytest.approx(expected, rel=limit("loss", "cuda") if precision == FP32 else 1e-2)
    distances = apart(grads, expected_grads)
    assert max(distances.values()) <= limit(name, "cuda"), distances


def test_more_logits_than_31_bits_count():
    """42 rows of 1024 positions of 50304 logits: 2.16e9. The halves one after the other say the same."""
    config = GPT2Config(layers=1, heads=1, channels=64, vocab=50257, context=1024)
    params = oracle.random_params(config, scale=0.05)
    inputs, targets = oracle.random_batch(config, 42, 1024)
    with Engine(config, 21, 1024, "cuda", params) as engine:
        engine.micro_step(inputs[:21], targets[:21], 0, 2)
        engine.micro_step(inputs[21:], targets[21:], 1, 2)
        expected_grads = engine.read(GRAD)
        expected = engine.result(engine.update())
    with Engine(config, 42, 1024, "cuda", params) as engine:
        loss, grads = engine.loss_and_grads(inputs, targets)
    assert np.isfinite(loss) and loss == pytest.approx(expected.loss, rel=limit("same", "cuda"))
    distances = apart(grads, expected_grads)
    assert max(distances.values()) <= limit("grads", "cuda"), distances


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_generation_sees_what_the_whole_pass_sees(precision):
    config = tiny_config(channels=128, heads=2, vocab=1000, context=64)
    tokens, _ = oracle.random_batch(config, 2, 64)
    with Engine(config, 2, 64, "cuda", oracle.random_params(config), precision=precision) as engine:
        full = engine.logits(tokens)
        engine.prefill(tokens[:, :20])
        found = [engine.decode(tokens[:, position]) for position in range(20, 64)]
    bound = limit("logits" if precision == FP32 else "bf16 logits", "cuda")
    assert max(oracle.distance(row, full[:, 20 + i]) for i, row in enumerate(found)) <= bound


# -- against the reference trainer, at full size


@pytest.fixture(scope="module")
def d12():
    from pyllmc.rng import initial_params

    config = GPT2Config.from_descriptor("d12")
    return config, initial_params(config)


def train_d12(d12, shakespeare, steps=40, validate=False, **options):
    """Losses, norms, and a hash of weights, or with `validate` the loss on the validation shard."""
    config, params = d12
    with (
        TokenLoader(shakespeare / "tinyshakespeare_gpt2_train.bin", 4, 1024, shuffle=True) as data,
        Engine(config, 4, 1024, "cuda", params, **options) as engine,
    ):
        results = []
        for step in range(steps):
            lr = oracle.cosine(step, peak=3e-4, steps=steps if validate else 40, warmup=10, final=0.0)
            results.append(
                engine.step([data.next_batch()], step=step + 1, learning_rate=lr, weight_decay=0.1, grad_clip=1.0)
            )
        if validate:
            with TokenLoader(shakespeare / "tinyshakespeare_gpt2_val.bin", 4, 1024, shuffle=False) as data:
                last = np.mean([engine.eval(*data.next_batch())[0] for _ in range(data.num_batches)])
            return [r.loss for r in results], [r.grad_norm for r in results], last
        weights = hashlib.sha256(b"".join(engine.read_one(name) for name in ("wte", "qkvw", "fcprojw", "lnfb")))
    return [r.loss for r in results], [r.grad_norm for r in results], weights.hexdigest()


def test_d12_fp32(d12, shakespeare, golden):
    losses, norms, _ = train_d12(d12, shakespeare, deterministic=0)
    expected, expected_norms, _ = logged(golden / "logs" / "d12_b4_fp32_stdout.log")
    np.testing.assert_allclose(losses[:7], list(expected.values())[:7], rtol=0, atol=1e-3)
    np.testing.assert_allclose(norms[:3], list(expected_norms.values())[:3], rtol=1e-3)
    assert np.abs(np.subtract(losses, list(expected.values()))).mean() <= 2e-2


@pytest.mark.parametrize("deterministic", [0, 1])
def test_d12_bf16(d12, shakespeare, golden, deterministic):
    losses, _, _ = train_d12(d12, shakespeare, deterministic=deterministic, **MIXED, **LANES)
    expected = list(logged(golden / "logs" / "d12_b4_fp32_stdout.log")[0].values())
    np.testing.assert_allclose(losses[:3], expected[:3], rtol=0, atol=2e-2)
    assert np.abs(np.subtract(losses, expected)).mean() <= 3e-2


def test_every_variant_learns_as_much(d12, shakespeare):
    """200 steps with what timing chooses, and with nothing fused, in one stream, by own kernels alone."""
    plain = {"streams": 1, "graph": 0, "gelu_fusion": 0, "tune": 0, "attention": 2, "deterministic": 1}
    found = [train_d12(d12, shakespeare, 200, True, **{**MIXED, **how})[2] for how in ({"deterministic": 0}, plain)]
    assert found[0] == pytest.approx(found[1], rel=5e-3) and found[0] < 6


def test_d12_repeats_bit_for_bit(d12, shakespeare):
    """Three runs with every lane at work, and one with none."""
    runs = [train_d12(d12, shakespeare, 10, **MIXED, **LANES) for _ in range(3)]
    runs.append(train_d12(d12, shakespeare, 10, **MIXED, streams=1, graph=0, prefetch=0))
    assert all(run == runs[0] for run in runs)
    assert len(set(runs[0][0])) == 10


# -- lanes

STEPS, MICRO_STEPS, STRESS_US = 200, 2, 300
SMALL = tiny_config(channels=64, vocab=300, context=32)


def pipelined(lag, steps=STEPS, look_ahead=2, **options):
    """Losses, norms and all state after a run that keeps `look_ahead` batches and `lag` results under way."""
    batches = [oracle.random_batch(SMALL, 2, 32, seed) for seed in range(steps * MICRO_STEPS)]
    ahead, pending, results = deque(), deque(), []
    hyper = {"learning_rate": 1e-3, "weight_decay": 0.1, "grad_clip": 1.0}
    with Engine(SMALL, 2, 32, "cuda", oracle.random_params(SMALL), results=4, **MIXED, **options) as engine:
        waiting = iter(batches)
        for step in range(steps):
            for i in range(MICRO_STEPS):
                while len(ahead) < look_ahead and (batch := next(waiting, None)) is not None:
                    ahead.append(engine.submit(*batch))
                engine.call("micro_step", ahead.popleft(), i, MICRO_STEPS)
            pending.append(engine.update(step=step + 1, **hyper))
            if len(pending) > lag:
                results.append(engine.result(pending.popleft()))
        results += [engine.result(ticket) for ticket in pending]
        state = hashlib.sha256()
        for kind in (PARAM, MASTER, ADAM_M, ADAM_V):
            for value in engine.read(kind).values():
                state.update(value)
        notes = ffi.string(engine.lib.llmc_model_notes(engine.handle)).decode()
    return [r.loss for r in results], [r.grad_norm for r in results], state.hexdigest(), notes


@pytest.fixture(scope="module")
def serial(cuda):
    """The run that has nothing to go wrong: one stream, no graph, no prefetch, each result awaited."""
    losses, norms, state, _ = pipelined(0, streams=1, graph=0, prefetch=0)
    assert len(set(losses)) == STEPS and losses[-1] < losses[0]
    return losses, norms, state


@pytest.mark.parametrize("streams, graph, prefetch, lag", list(itertools.product((1, 4), (0, 1), (0, 3), (0, 2))))
def test_switches_do_not_change_a_bit(serial, streams, graph, prefetch, lag):
    """200 steps of two micro-steps, random delays at every edge."""
    *run, notes = pipelined(lag, streams=streams, graph=graph, prefetch=prefetch, stress=STRESS_US)
    assert tuple(run) == serial
    assert "graph" not in notes, notes  # an eager fallback would make this test vain


def edges():
    """Names of the engine's edges, in the order of lanes.h."""
    path = os.path.join(os.path.dirname(__file__), "..", "llmc", "lanes.h")
    with open(path) as file:
        table = re.search(r"EDGES\[NUM_EDGES\] = \{(.*?)\n\};", file.read(), re.S)[1]
    return re.findall(r'^    \{"(\w+)"', table, re.M)


def differs_without(edge, serial):
    """Whether a run that leaves out the wait of this edge ends otherwise. A process of its own: it may crash.

    Two runs: one far ahead of the device, where a batch can be overwritten too early, and one that hands
    every batch over at the last moment, where it can be read too early.
    """
    options = {**LANES, "graph": 0, "stress": 2000, "drop_edge": edge}
    code = (
        "import json, test_gpu; print(json.dumps([test_gpu.pipelined(lag, 40, ahead, **%r)[:2]"
        " for lag, ahead in ((2, 2), (0, 1))]))" % options
    )
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([folder, os.path.dirname(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        return True
    return any(run != [serial[0][:40], serial[1][:40]] for run in json.loads(done.stdout))


def test_a_missing_wait_is_noticed(serial, record_property):
    """The equality above can fail: without the wait for an upload, the wrong tokens are read."""
    names = edges()
    assert names[:2] == ["inputs_ready", "targets_ready"]
    assert not differs_without(-1, serial)  # the harness itself agrees when nothing is left out
    noticed = [name for edge, name in enumerate(names) if differs_without(edge, serial)]
    record_property("edges noticed when left out", " ".join(noticed))
    assert {"inputs_ready", "targets_ready"} <= set(noticed), noticed


def test_host_memory_is_free_when_it_is_handed_out():
    """Two slots, uploads held up for milliseconds, memory overwritten as soon as acquire gives it."""
    runs = []
    for stress in (0, 5000):
        with Engine(SMALL, 2, 32, "cuda", oracle.random_params(SMALL), slots=2, results=16, stress=stress) as engine:
            tickets = []
            for step in range(12):
                engine.micro_step(*oracle.random_batch(SMALL, 2, 32, step))
                tickets.append(engine.update(step=step + 1, learning_rate=1e-3))
            runs.append([engine.result(ticket).loss for ticket in tickets])
    assert runs[0] == runs[1]


def test_mixed_precision_resume_is_exact():
    """Weights, master, moments and generator moved to a new model: the same bits from there on."""
    batches = [oracle.random_batch(SMALL, 2, 32, seed) for seed in range(10)]
    kinds = (PARAM, MASTER, ADAM_M, ADAM_V)

    def run(engine, steps):
        return [engine.step([batches[s]], step=s + 1, learning_rate=1e-2, weight_decay=0.1).loss for s in steps]

    with Engine(SMALL, 2, 32, "cuda", oracle.random_params(SMALL), **MIXED) as engine:
        run(engine, range(5))
        kept = [engine.read(kind) for kind in kinds]
        now, before = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        engine.call("rng_get", now, before)
        assert now[0] != before[0]
        expected = run(engine, range(5, 10)), [engine.read(kind) for kind in kinds]
    with Engine(SMALL, 2, 32, "cuda", seed=99, **MIXED) as engine:
        for kind, values in zip(kinds, kept, strict=True):
            engine.write(values, kind)
        engine.call("rng_set", now[0])
        found = run(engine, range(5, 10)), [engine.read(kind) for kind in kinds]
    assert found[0] == expected[0]
    for kind, after, wanted in zip(kinds, found[1], expected[1], strict=True):
        assert all(np.array_equal(after[name], wanted[name]) for name in wanted), kind


@pytest.mark.parametrize("graph", [0, 1])
def test_timeline_shows_every_lane(graph):
    batch = oracle.random_batch(SMALL, 2, 32)
    with Engine(SMALL, 2, 32, "cuda", oracle.random_params(SMALL), **{**MIXED, **LANES, "graph": graph}) as engine:
        losses = []
        for step in range(6):
            if step == 4:
                engine.call("timeline_arm")
            result = engine.step([batch, batch], step=step + 1, learning_rate=1e-3)
            losses.append(result.loss)
            assert 0 < result.device_ms < 1e4
        spans, count = ffi.new("llmc_span[]", 1000), ffi.new("int32_t *")
        engine.call("timeline_read", spans, 1000, count)
    assert len(set(losses)) == 6
    spans = [spans[i] for i in range(count[0])]
    by_lane = {}
    for span in spans:
        assert span.end_us > span.start_us >= 0 or ffi.string(span.lane) != b"compute"
        by_lane.setdefault(ffi.string(span.lane).decode(), []).append(span)
    assert set(by_lane) == {"inputs", "targets", "compute", "loss"}
    # work on one lane is in order and never overlaps; half a microsecond is the clock's grain
    for lane, members in by_lane.items():
        members.sort(key=lambda span: span.start_us)
        assert all(a.end_us <= b.start_us + 0.5 for a, b in itertools.pairwise(members)), lane
    layers = {span.layer for span in by_lane["compute"]}
    assert layers >= set(range(SMALL.layers))

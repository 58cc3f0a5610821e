"""The engine against files that the reference programs wrote: one batch, short runs, a resumed run."""

import json
import re

import numpy as np
import oracle
import pytest
from conftest import MICRO
from engine import ADAM_M, ADAM_V, Engine
from tolerance import limit

from pyllmc.formats import read_checkpoint, read_debug_state, read_state, split_by_tensor
from pyllmc.loader import TokenLoader

MODELS = ("micro", "tiny")


@pytest.fixture(params=MODELS)
def model(request):
    """(checkpoint, debug state, prefix of the other files) of each reference model."""
    folder = MICRO if request.param == "micro" else request.getfixturevalue("golden")
    prefix = f"{folder}/{request.param}_"
    checkpoint = read_checkpoint(prefix + "fp32.bin")
    return checkpoint, read_debug_state(prefix + "debug_state.bin", checkpoint.config), prefix


def open_engine(checkpoint, B, T, backend, **options):
    return Engine(checkpoint.config, B, T, backend, params=checkpoint.params, **options)


def test_logits_loss_and_gradients(model, backend):
    checkpoint, state, _ = model
    with open_engine(checkpoint, *state.inputs.shape, backend) as engine:
        assert oracle.distance(engine.logits(state.inputs), state.logits) <= limit("logits", backend)
        loss, grads = engine.loss_and_grads(state.inputs, state.targets)
    assert loss == pytest.approx(state.loss, rel=limit("loss", backend))
    apart = {name: oracle.distance(grads[name], state.grads[name]) for name in grads}
    assert max(apart.values()) <= limit("grads", backend), apart


def test_oracle_agrees_with_reference(model):
    """The yardstick itself, so that a fault of its own can't hide behind the engine's."""
    checkpoint, state, _ = model
    logits = oracle.logits(oracle.widened(checkpoint.params), state.inputs, checkpoint.config)
    assert oracle.distance(logits, state.logits) <= 1e-6
    loss, grads = oracle.loss_and_grads(checkpoint.params, state.inputs, state.targets, checkpoint.config)
    assert loss == pytest.approx(state.loss, rel=1e-6)
    assert max(oracle.distance(grads[name], state.grads[name]) for name in grads) <= 2e-6


def test_ten_steps_on_one_batch(model, backend):
    checkpoint, state, prefix = model
    with open(prefix + "overfit.json") as file:
        run = json.load(file)
    how = run["optimizer"]
    hyper = {
        "learning_rate": how["lr"],
        **{name: how[name] for name in ("beta1", "beta2", "eps", "weight_decay", "grad_clip")},
    }
    with open_engine(checkpoint, *state.inputs.shape, backend) as engine:
        results = [engine.step([(state.inputs, state.targets)], step=i + 1, **hyper) for i in range(10)]
    expected = [(record["loss"], record["grad_norm"]) for record in run["overfit_one_batch"]]
    assert len(expected) == 10
    np.testing.assert_allclose([(r.loss, r.grad_norm) for r in results], expected, rtol=limit("overfit", backend))
    assert [r.clip_scale for r in results] == pytest.approx([min(1, 1 / norm) for _, norm in expected], rel=1e-4)


def mean_eval(engine, loader, batches):
    """Validation as the reference does it: always the first batches of the file."""
    loader.reset()
    return np.mean([engine.eval(*loader.next_batch())[0] for _ in range(batches)])


def test_run_of_the_reference_trainer(golden, backend):
    """41 training and 5 validation losses; validation comes before the steps 0, 10, 20, 30 and 40."""
    run = json.loads((golden / "tiny_cpu_run.json").read_text())
    checkpoint = read_checkpoint(golden / "tiny_fp32.bin")
    B, T = run["B"], run["T"]
    hyper = {"learning_rate": run["lr"], "beta1": run["beta1"], "beta2": run["beta2"], "eps": run["eps"]}
    train, val = [], []
    with (
        TokenLoader(golden / run["train"], B, T, shuffle=run["shuffle"]) as train_data,
        TokenLoader(golden / run["val"], B, T) as val_data,
        open_engine(checkpoint, B, T, backend) as engine,
    ):
        for step in range(len(run["train_loss"])):
            if step % run["val_every"] == 0:
                val.append(mean_eval(engine, val_data, run["val_batches"]))
            train.append(engine.step([train_data.next_batch()], step=step + 1, **hyper).loss)
    np.testing.assert_allclose(train, run["train_loss"], rtol=0, atol=limit("trajectory", backend))
    np.testing.assert_allclose(val, run["val_loss"], rtol=0, atol=limit("trajectory", backend))


def logged(path):
    """({step: loss}, {step: norm}, [validation losses]) of a reference trainer's standard output."""
    text = path.read_text()
    steps = re.findall(r"step +(\d+)/\d+ \| loss ([\d.]+) .*?norm ([\d.]+)", text)
    return (
        {int(step): float(loss) for step, loss, _ in steps},
        {int(step): float(norm) for step, _, norm in steps},
        [float(loss) for loss in re.findall(r"^val loss ([\d.]+)", text, re.M)],
    )


def test_resume_of_a_reference_run(golden, backend):
    """Weights, moments, step and data position of llm.c's own checkpoint lead to llm.c's own next ten losses."""
    losses, norms, val_losses = logged(golden / "logs" / "mid_fp32_stdout.log")
    resumed = logged(golden / "logs" / "mid_fp32_resume_stdout.log")
    assert resumed[0] == {step: losses[step] for step in range(11, 21)}  # else the file does not mean what we think
    checkpoint = read_checkpoint(golden / "mid_model_00000010.bin")
    config = checkpoint.config
    state = read_state(golden / "mid_state_00000010_00000.bin", config)
    assert state.step == 10 and state.master is None
    found, found_norms, found_val = {}, {}, []
    with (
        TokenLoader(golden / "bytes_train_*.bin", 4, 64, shuffle=True) as train_data,
        TokenLoader(golden / "bytes_val_000000.bin", 4, 64) as val_data,
        open_engine(checkpoint, 4, 64, backend) as engine,
    ):
        train_data.restore(state.loader)
        engine.write(split_by_tensor(state.m, config), ADAM_M)
        engine.write(split_by_tensor(state.v, config), ADAM_V)
        for step in range(state.step, 20):
            if step % 5 == 0:
                found_val.append(mean_eval(engine, val_data, 5))
            lr = oracle.cosine(step, peak=1e-3, steps=20, warmup=2, final=0.1)
            result = engine.step(
                [train_data.next_batch()], step=step + 1, learning_rate=lr, weight_decay=0.1, grad_clip=1.0
            )
            found[step + 1], found_norms[step + 1] = result.loss, result.grad_norm
        found_val.append(mean_eval(engine, val_data, 5))
    for step in range(11, 21):
        assert found[step] == pytest.approx(losses[step], abs=1e-4), step
        assert found_norms[step] == pytest.approx(norms[step], rel=1e-3), step
    assert found_val == pytest.approx(val_losses[2:], abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_bf16_checkpoint(name, request, backend):
    """Weights of 16 bits widen exactly, load, and give about the loss of the full ones."""
    folder = MICRO if name == "micro" else request.getfixturevalue("golden")
    full, half = (read_checkpoint(folder / f"{name}_{dtype}.bin") for dtype in ("fp32", "bf16"))
    state = read_debug_state(folder / f"{name}_debug_state.bin", full.config)
    for tensor, values in half.params.items():
        assert not (values.view(np.uint32) & 0xFFFF).any(), tensor
        # rounding to nearest of 8 significant bits moves a value by 2^-9 of it at most
        assert (np.abs(values - full.params[tensor]) <= np.abs(full.params[tensor]) * 2.0**-8).all(), tensor
    with open_engine(half, *state.inputs.shape, backend) as engine:
        for tensor, values in half.params.items():
            assert np.array_equal(engine.read_one(tensor), values), tensor
        loss, grads = engine.loss_and_grads(state.inputs, state.targets)
    assert loss == pytest.approx(state.loss, abs=limit("bf16 loss", backend))
    assert loss == pytest.approx(
        oracle.loss_and_grads(half.params, state.inputs, state.targets, half.config)[0], rel=limit("loss", backend)
    )
    assert oracle.distance(grads["wte"], state.grads["wte"]) < 0.05

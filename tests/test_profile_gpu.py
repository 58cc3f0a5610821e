"""Kernels and ceilings on a GPU: what is assigned and counted, never how fast it was."""

import ctypes
import math

import numpy as np
import pytest

from pyllmc import GPT2, GPT2Config
from pyllmc.errors import Unavailable
from pyllmc.profile import ceilings
from pyllmc.profile.cuda_driver import Device
from pyllmc.profile.kernel_profile import WELL_ASSIGNED, profile_kernels
from pyllmc.profile.kernels import Collector
from pyllmc.profile.record import Runner
from pyllmc.profile.session import Session, measure

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]
CONFIG = GPT2Config(layers=3, heads=4, channels=256, vocab=1000, context=128)


@pytest.fixture
def cupti():
    try:
        with Collector():
            pass
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("options", [{}, {"graph": 0}, {"streams": 1}, {"recompute": 2, "head_chunks": 3}], ids=str)
def test_kernels_are_assigned_to_their_ops(cupti, options):
    session = Session("test", CONFIG, None, {"batch": 4, "seq_len": 128, "device": "cuda", "precision": "bf16", **options}, 1, 4, 8)
    times, found, notes = profile_kernels(session.runner, session.steps, session.warmup)
    assert notes == [] and found["assigned"] >= WELL_ASSIGNED
    wanted = {"qkv", "attention", "attention bwd", "fcproj dweight", "logits", "classifier", "dwte", "norm 1 bwd", "gradient norm", "adamw"}
    assert wanted <= times.keys()
    assert all(len(each) == 4 and min(each) > 0 for name, each in times.items() if name in wanted)
    own = {row["kernel"].split("<")[0]: row["ops"] for row in found["rows"]}
    assert own["descend"] == ["adamw"] and own["differentiate"] and all("norm" in op for op in own["differentiate"])


def test_accumulation_is_counted(cupti):
    session = Session("test", CONFIG, None, {"batch": 2, "seq_len": 64, "device": "cuda", "precision": "bf16"}, 3, 3, 8)
    found = measure(session, kernels=True)
    rows = {row["op"]: row for row in found["ops"]}
    assert rows["qkv"]["calls"] == 3 * CONFIG.layers and rows["adamw"]["calls"] == 1 and found["kernels"]["assigned"] >= WELL_ASSIGNED


def test_copies_run_beside_compute():
    with GPT2.from_config(CONFIG, batch=8, seq_len=128, device="cuda", precision="bf16") as model:
        runner = Runner(model)
        runner.run(8)
        lanes = {span.lane for span in runner.record()}
    assert lanes == {"inputs", "targets", "compute", "loss"}


@pytest.mark.parametrize("arithmetic", ["bf16", "tf32", "fp32"])
def test_ceilings_are_numbers(monkeypatch, arithmetic):
    monkeypatch.setattr(ceilings, "WARM_S", 0)
    monkeypatch.setattr(ceilings, "MEASURE_S", 0)
    monkeypatch.setattr(ceilings, "GPU_SIDE", 1024)
    found = ceilings._measure_gpu(0, arithmetic)
    assert all(math.isfinite(found[name]) and found[name] > 0 for name in ("copy_tb_s", "product_tflops"))


def test_a_product_is_the_product():
    """What the ceiling times is a real product of the factors: checked by one that is known."""
    n = 64
    left, right = np.random.default_rng(0).standard_normal((2, n, n)).astype(np.float32)
    with Device(0) as device:
        memory = [device.upload(array) for array in (left, right)]
        out = device.allocate(left.nbytes)
        device.product(out, *memory, n, "fp32")
        device.synchronize()
        found = np.empty_like(left)
        device._call("cuMemcpyDtoH_v2", found.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_size_t(found.nbytes))
    assert np.allclose(found, (left.T @ right.T).T, atol=1e-3)  # cuBLAS counts columns first

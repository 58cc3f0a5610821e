"""Kernels: found by a collector, given to spans under an unknown offset, timed in steps without spans."""

import random
import sys
from types import SimpleNamespace

import pytest
from synthetic_step import kernels_of, step

from pyllmc.errors import Unavailable
from pyllmc.inspection import Span
from pyllmc.profile import kernels as collecting
from pyllmc.profile.alignment import Kernel, assign
from pyllmc.profile.kernel_profile import evaluate
from pyllmc.profile.measured import floor, op_rows, split_steps
from pyllmc.profile.op_costs import Work

# -- which span a kernel belongs to


@pytest.mark.parametrize("offset", [0.0, 1.7e12, -8.5e6, 137.3])
@pytest.mark.parametrize("streams", [True, False], ids=["streams", "one-stream"])
@pytest.mark.parametrize("layers", [1, 12, 48])
def test_kernels_find_their_spans(offset, streams, layers):
    spans = step(layers, seed=layers)
    if not streams:  # then nothing runs beside anything
        spans = [span for span in spans if span.lane == "compute"]
    kernels, truth = kernels_of(spans, offset, seed=layers, streams=streams)
    found = assign(kernels, spans)
    assert found.span_of == truth and found.share == 1.0
    assert found.offset_us == pytest.approx(-offset, abs=1.5)


def test_layers_of_equal_length_are_not_mixed_up():
    """Shifted by a whole layer, nearly all kernels fit too: only the ends of the step tell."""
    starts = [(name, layer, 100.0 * layer + at) for layer in range(30) for name, at in (("qkv", 0), ("fc", 50))]
    spans = [Span(name, "compute", layer, start, start + 40) for name, layer, start in starts]
    kernels = [Kernel("k", span.start_us + 1 + 5e5, span.end_us - 1 + 5e5) for span in spans]
    assert assign(kernels, spans).span_of == list(range(60))


def test_one_stream_for_all_lanes():
    spans = [span for span in step(6) if span.lane == "compute"]
    hole = next(i for i, span in enumerate(spans) if span.name == "norm 1 bwd" and span.layer == 0)
    start = spans[hole].end_us
    upload, mean = Span("upload inputs", "inputs", None, start + 3, start + 13), Span("mean loss", "loss", None, start + 15, start + 24)
    spans[hole + 1 : hole + 1] = [upload, mean]
    kernels, truth = kernels_of(spans, 3e6, streams=False)
    assert {kernel.stream for kernel in kernels} == {7} and assign(kernels, spans).span_of == truth


def test_lost_and_foreign_kernels():
    spans = step(6)
    kernels, truth = kernels_of(spans, 1e6)
    kept = [i for i in range(len(kernels)) if random.Random(i).random() < 0.8]
    stray = Kernel("stray", spans[-4].end_us + 1e6 + 5000, spans[-4].end_us + 1e6 + 6000, 13)
    found = assign([*(kernels[i] for i in kept), stray], spans)
    assert found.span_of == [*(truth[i] for i in kept), None]
    time = sum(kernels[i].end_us - kernels[i].start_us for i in kept)
    assert found.share == pytest.approx(time / (time + 1000))


def test_nothing_to_assign():
    assert assign([], step()).span_of == [] and assign([Kernel("k", 0, 1)], []) == ([None], 0.0, 0.0)


# -- times from steps without spans


def plain_steps(steps, spans):
    """Kernels of several steps one after another, all 1 us longer in each later step."""
    found = []
    for n in range(steps):
        kernels, _ = kernels_of(spans, 1e6 * (n + 1))
        found += [kernel._replace(end_us=kernel.end_us + n) for kernel in kernels]
    return found


def test_split_steps():
    spans = step(3)
    armed, _ = kernels_of(spans, 5e8)
    durations, differing = split_steps(plain_steps(4, spans), armed, 4)
    assert differing == []
    for kernel, each in zip(armed, durations, strict=True):
        own = kernel.end_us - kernel.start_us
        assert each == pytest.approx([own, own + 1, own + 2, own + 3], abs=1e-3)


def test_kernels_that_differ_are_named_and_have_the_recorded_times():
    spans = step(3)
    armed, _ = kernels_of(spans, 5e8)
    plain = plain_steps(4, spans)
    plain.remove(next(kernel for kernel in plain if kernel.name == "adamw_kernel"))
    durations, differing = split_steps(plain, armed, 4)
    assert differing == ["adamw_kernel"]
    at = next(i for i, kernel in enumerate(armed) if kernel.name == "adamw_kernel")
    assert durations[at] == [armed[at].end_us - armed[at].start_us] * 4
    notes = evaluate(plain, armed, spans, 4, untimed=2)[2]
    assert "1 kernels ran another number of times" in notes[0] and "2 kernels" in notes[1]


def test_evaluate_gives_every_op_its_kernels():
    spans = step(3)
    armed, _ = kernels_of(spans, 5e8)
    times, kernels, notes = evaluate(plain_steps(3, spans), armed, spans, 3)
    assert notes == [] and kernels["assigned"] == 1.0 and times.keys() == {span.name for span in spans}
    assert sum(row["calls"] for row in kernels["rows"]) == len(armed)
    assert sum(row["share"] for row in kernels["rows"]) == pytest.approx(1)
    both = next(row for row in kernels["rows"] if row["kernel"] == "attention_kernel")
    assert both["ops"] == ["attention", "attention bwd"] and both["calls"] == 6
    own = sum(k.end_us - k.start_us for k in armed if k.name == "attention_kernel")
    assert both["ms"] == pytest.approx((own + 6) / 1e3) and both["mean_us"] == pytest.approx(own / 6 + 1)
    assert both["low"] == pytest.approx(own / 1e3) and both["high"] == pytest.approx((own + 12) / 1e3)
    assert 0 < kernels["busy"] < 1


# -- rows


def test_op_rows():
    best = {"copy_tb_s": 4.0, "product_tflops": 500.0}
    work = {"qkv": Work(1e12, 2e9), "adamw": Work(None, 4e9), "gate": Work()}
    rows = {row["op"]: row for row in op_rows({"qkv": [3e3, 5e3, 4e3], "adamw": [2e3] * 3, "gate": [1.0] * 3}, work, {"qkv": 12}, best)}
    assert list(rows) == ["qkv", "adamw", "gate"]
    qkv = rows["qkv"]
    assert (qkv["ms"], qkv["low"], qkv["high"], qkv["calls"]) == (4, 3, 5, 12)
    assert qkv["tflops"] == pytest.approx(250) and qkv["tb_s"] == pytest.approx(0.5) and qkv["bound"] == "compute"
    assert qkv["floor_ms"] == pytest.approx(2) and qkv["of_ceiling"] == pytest.approx(0.5) and qkv["above_ms"] == pytest.approx(2)
    assert rows["adamw"]["bound"] == "memory" and rows["adamw"]["of_ceiling"] == pytest.approx(0.5) and rows["adamw"]["tflops"] is None
    assert rows["gate"]["floor_ms"] is None and rows["gate"]["tb_s"] is None
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)


def test_without_ceilings_there_is_no_floor():
    assert set(floor(1e9, 1e9, 1.0, None).values()) == {None}
    assert op_rows({}, {}, {}) == []


# -- the collector


class FakeCupti:
    """As much of NVIDIA's binding as is used; hands out its records when it is flushed."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, MEMCPY=1, MEMSET=2)

    def __init__(self, records=(), refuses=None):
        self.records, self.refuses, self.enabled = list(records), refuses, []

    def ActivityMemcpyKind(self, number):
        return SimpleNamespace(name={1: "HTOD", 2: "DTOH"}[number])

    def activity_register_callbacks(self, requested, completed):
        assert requested()[0] > 0
        self.completed = completed

    def activity_enable(self, kind):
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.enabled.append(kind)

    def activity_disable(self, kind):
        self.enabled.remove(kind)

    def activity_flush_all(self, flag):
        self.completed(self.records)
        self.records = []


def record(kind, start, end, **more):
    return SimpleNamespace(kind=kind, start=start, end=end, stream_id=7, **more)


def test_collector(monkeypatch):
    fake = FakeCupti([
        record(10, 5000, 7500, name="_ZN4llmc12_GLOBAL__N_113differentiateI13__nv_bfloat16Lb1EEEvPT_i"), record(1, 1000, 2000, copy_kind=1),
        record(2, 3000, 3100), record(10, 0, 0, name="untimed"), record(1, 8000, 9000, copy_kind=5), record(99, 1, 2),
    ])  # fmt: skip
    monkeypatch.setattr(collecting, "_cupti", lambda: fake)
    with collecting.Collector() as collector:
        assert fake.enabled == [10, 1, 2]
        found = collector.take()
        assert found == [
            Kernel("copy to device", 1.0, 2.0, 7), Kernel("fill", 3.0, 3.1, 7), Kernel("differentiate<bf16, true>", 5.0, 7.5, 7),
            Kernel("copy of kind 5", 8.0, 9.0, 7),
        ]  # fmt: skip
        assert collector.untimed == 1 and collector.take() == []
    assert fake.enabled == []


def test_a_refusal_is_one_sentence(monkeypatch):
    fake = FakeCupti(refuses="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:\n  needs more")
    monkeypatch.setattr(collecting, "_cupti", lambda: fake)
    with pytest.raises(Unavailable, match="^CUPTI can't be used: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: needs more; the driver lets only"):
        collecting.Collector().start()


def test_an_absent_binding_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(Unavailable, match=r"^CUPTI can't be used: no module cupti \(pip install cupti-python\)$"):
        collecting.Collector()


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopA_TNN", "nvjet_tst_192x192_64x4_1x2_h_bz_coopA_TNN"),
        ("void cub::detail::RadixSort<cub::hub<int, int>::P9, (bool)0, int>(T3 *, const T3*)", "RadixSort<hub<int, int>::P9, 0, int>"),
        ("_ZN4llmc12_GLOBAL__N_17look_upI13__nv_bfloat16Li8EEEvPT_PKiPKS3_S8_iiii", "look_up<bf16, 8>"),
        ("_Zbroken", "_Zbroken"), ("", "unnamed"), (None, "unnamed"),
    ],
)  # fmt: skip
def test_readable(name, wanted):
    assert collecting.readable(name) == wanted

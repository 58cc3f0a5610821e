"""The C ABI, verb by verb: what it refuses and how it says so, in which order calls may come, what stays untouched."""

import gc
import os
import queue
import re
import resource
import subprocess
import sys
import threading

import engine as driver
import numpy as np
import oracle
import pytest
from engine import ADAM_M, BF16, FP32, GRAD, HEADER, MASTER, PARAM, STATUS, Engine, EngineError, ffi, load, tiny_config

from pyllmc import bf16

CONFIG = tiny_config(layers=1, channels=8, vocab=11, context=8)
VERBS = re.findall(r"^llmc_status llmc_(\w+)\(([^)]*)\)", HEADER, re.M)
MODEL_VERBS = [(name, args) for name, args in VERBS if args.startswith("llmc_model *model")]


@pytest.fixture
def lib(backend):
    return load(backend)


@pytest.fixture
def model(backend):
    with Engine(CONFIG, 2, 4, backend, oracle.random_params(CONFIG), results=2, slots=3) as engine:
        yield engine


def refused(status, *words, call):
    """call() raises EngineError with this status and all the words in its message."""
    with pytest.raises(EngineError) as caught:
        call()
    assert caught.value.status == status, caught.value
    for word in words:
        assert str(word) in caught.value.message, (word, caught.value.message)
    return caught.value.message


def batch(seed=0):
    return oracle.random_batch(CONFIG, 2, 4, seed)


# -- the library


def test_version_sizes_and_names(lib, backend):
    assert lib.llmc_abi_version() == int(re.search(r"LLMC_ABI_VERSION = (\d+)", HEADER)[1])
    structs = [name for name in ffi.list_types()[0] if name != "llmc_model" and ffi.typeof(name).kind == "struct"]
    assert len(structs) == 11
    for name in structs:
        assert lib.llmc_struct_size(name.removeprefix("llmc_").encode()) == ffi.sizeof(name), name
    assert [lib.llmc_struct_size(name) for name in (b"", b"nonsense", b"llmc_config", ffi.NULL)] == [0] * 4
    assert ffi.string(lib.llmc_backend()).decode() == backend
    assert len(ffi.string(lib.llmc_build_info())) > 10


def test_every_declared_verb_is_there(lib):
    declared = set(re.findall(r"\b(llmc_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)))
    assert len(declared) > 35
    for name in declared:
        assert getattr(lib, name), name


def test_defaults_make_a_model(lib):
    options, hyper = ffi.new("llmc_options *"), ffi.new("llmc_hyper *")
    ffi.buffer(options)[:] = b"\xaa" * ffi.sizeof("llmc_options")  # every field must be set
    ffi.buffer(hyper)[:] = b"\xaa" * ffi.sizeof("llmc_hyper")
    lib.llmc_options_default(options)
    lib.llmc_hyper_default(hyper)
    assert (options.world, options.rank, options.drop_edge, options.stress) == (1, 0, -1, 0)
    assert options.slots >= 3 and options.results >= 2 and options.batch >= 1
    assert bytes(options.comm_id) == bytes(128)
    assert (hyper.beta1, hyper.beta2) == (pytest.approx(0.9), pytest.approx(0.95))
    assert hyper.step == 1 and hyper.max_loss_z == hyper.max_norm_z == 0
    options.seq_len = 8
    out = ffi.new("llmc_model **")
    driver.check(lib, lib.llmc_model_create(driver.make_config(CONFIG), options, out))
    resolved = ffi.new("llmc_options *")
    driver.check(lib, lib.llmc_model_options(out[0], resolved))
    assert (resolved.batch, resolved.seq_len, resolved.slots) == (options.batch, 8, options.slots)
    assert ffi.string(lib.llmc_model_notes(out[0])).decode() is not None
    driver.check(lib, lib.llmc_synchronize(out[0]))
    lib.llmc_model_free(out[0])
    lib.llmc_options_default(ffi.NULL)
    lib.llmc_hyper_default(ffi.NULL)
    lib.llmc_model_free(ffi.NULL)


def test_devices(lib):
    count, info = ffi.new("int32_t *"), ffi.new("llmc_device *")
    assert lib.llmc_device_count(count) == 0 and count[0] >= 1
    for device in range(count[0]):
        assert lib.llmc_device_info(device, info) == 0
        assert ffi.string(info.name) and info.memory_bytes > 1 << 20 and info.multiprocessors >= 1
    for device in (-1, count[0], 1 << 30):
        refused("INVALID", device, call=lambda: driver.check(lib, lib.llmc_device_info(device, info)))
    refused("INVALID", "count", call=lambda: driver.check(lib, lib.llmc_device_count(ffi.NULL)))
    refused("INVALID", "info", call=lambda: driver.check(lib, lib.llmc_device_info(0, ffi.NULL)))


def test_what_tuning_found(lib, backend):
    refused("INVALID", "text", call=lambda: driver.check(lib, lib.llmc_tuning_import(ffi.NULL)))
    if backend == "cpu":  # which finds nothing and takes anything
        driver.check(lib, lib.llmc_tuning_import(b"whatever\n"))
        assert ffi.string(lib.llmc_tuning_export()) == b""
    else:
        refused("INVALID", "line 1", call=lambda: driver.check(lib, lib.llmc_tuning_import(b"whatever\n")))


def test_communicator_id(lib):
    refused("INVALID", "id", call=lambda: driver.check(lib, lib.llmc_comm_id(ffi.NULL, 128)))
    refused("INVALID", "12", call=lambda: driver.check(lib, lib.llmc_comm_id(ffi.new("uint8_t[128]"), 12)))


# -- configuration


CONFIG_FAULTS = [
    *(
        (field, value)
        for field in ("context", "vocab", "layers", "heads", "channels")
        for value in (0, -1, -(2**31), 2**31 - 1)
    ),
    ("heads", 3),  # 8 channels
]


@pytest.mark.parametrize("field, value", CONFIG_FAULTS)
def test_config_out_of_range(lib, field, value):
    config = driver.make_config(CONFIG)
    setattr(config, field, value)
    options = driver.make_options(lib, batch=1, seq_len=1, precision=FP32)
    plan, out = ffi.new("llmc_memory *"), ffi.new("llmc_model **")
    info = ffi.new("llmc_param *")
    for status in (
        lambda: lib.llmc_memory_plan(config, options, plan),
        lambda: lib.llmc_model_create(config, options, out),
        lambda: lib.llmc_param_info(config, 0, info),
    ):
        refused("INVALID", field, value, call=lambda: driver.check(lib, status()))
    assert out[0] == ffi.NULL and bytes(ffi.buffer(plan)) == bytes(ffi.sizeof("llmc_memory"))


OPTION_FAULTS = {
    "batch": (0, -1, 2**31 - 1), "seq_len": (0, -1, 9), "device": (-1, 1000), "threads": (-1,),
    "train": (-1, 2), "precision": (-1, 2), "master_weights": (-1, 2), "tf32": (-1, 2), "recompute": (-1, 3), "gelu_fusion": (-1, 3),
    "attention": (-1, 3), "head_chunks": (0, -1, 9), "deterministic": (-1, 2), "streams": (0, 2, 3, 5, -4),
    "graph": (-1, 2), "prefetch": (-1, 4), "slots": (1, 0, -1, 1000000), "results": (1, 0, -1, 1000000),
    "tune": (-1, 2), "stress": (-1, 2**31 - 1), "drop_edge": (-2, 1000), "rank": (-1, 1), "world": (0, -1), "zero_stage": (-1, 2),
}  # fmt: skip


def test_option_faults_cover_every_option():
    free = {"seed", "comm_id"}  # any bits will do
    assert set(OPTION_FAULTS) | free == {name for name, _ in ffi.typeof("llmc_options").fields}


@pytest.mark.parametrize(
    "field, value", [(field, value) for field, values in OPTION_FAULTS.items() for value in values]
)
def test_option_out_of_range(lib, field, value):
    options = driver.make_options(lib, **{"batch": 2, "seq_len": 4, "precision": FP32, field: value})
    plan, out = ffi.new("llmc_memory *"), ffi.new("llmc_model **")
    for status in (
        lambda: lib.llmc_memory_plan(driver.make_config(CONFIG), options, plan),
        lambda: lib.llmc_model_create(driver.make_config(CONFIG), options, out),
    ):
        refused("INVALID", field, value, call=lambda: driver.check(lib, status()))
    assert out[0] == ffi.NULL and bytes(ffi.buffer(plan)) == bytes(ffi.sizeof("llmc_memory"))


def test_what_this_backend_cannot_do_is_said(backend):
    if backend == "cpu":
        refused("UNAVAILABLE", "bf16", call=lambda: Engine(CONFIG, 1, 1, backend, precision=BF16))
        refused("UNAVAILABLE", "world", call=lambda: Engine(CONFIG, 1, 1, backend, world=2))


# -- arguments


def filled(c_type):
    """Memory for an out-parameter, marked so that a write shows."""
    size = 4096
    memory = ffi.new("char[]", b"\x5a" * size + b"")
    return ffi.cast(c_type, memory), memory, bytes(ffi.buffer(memory))


@pytest.mark.parametrize("verb, args", MODEL_VERBS, ids=[name for name, _ in MODEL_VERBS])
def test_null_model(lib, verb, args):
    """Each verb says its own name and that the model is missing, and writes nothing."""
    values, kept = [ffi.NULL], []
    for arg in args.split(",")[1:]:
        c_type = arg.strip().rsplit(None, 1)[0] + (" *" if "*" in arg else "")
        if "*" in c_type:
            pointer, memory, before = filled(c_type.replace("const ", "").replace("**", "*"))
            values.append(pointer)
            kept.append((memory, before))
        else:
            values.append(1)
    message = refused("INVALID", "model", call=lambda: driver.check(lib, getattr(lib, "llmc_" + verb)(*values)))
    assert message.startswith(f"llmc_{verb}")
    for memory, before in kept:
        assert bytes(ffi.buffer(memory)) == before


def test_null_arguments(model):
    null, int32 = ffi.NULL, ffi.new("int32_t *")
    tokens, logits = ffi.new("int32_t[8]"), ffi.new("float[]", 1000)
    slot = model.submit(*batch())
    for verb, *args in (
        ("model_options", null), ("slot_acquire", 0, null), ("update", null, ffi.new("int64_t *")),
        ("update", ffi.new("llmc_hyper *"), null), ("result", 0, 0, null), ("guard_get", null), ("guard_set", null),
        ("snapshot_read", PARAM, 15, FP32, null, 32), ("snapshot_guard", null),
        ("tensor_read", PARAM, 15, FP32, null, 32), ("tensor_write", PARAM, 15, FP32, null, 32),
        ("logits", slot, null, 2 * 4 * 11 * 4), ("prefill", null, 1, 1, logits), ("prefill", tokens, 1, 1, null),
        ("decode", null, logits), ("decode", tokens, null), ("timeline_read", null, 1, int32),
        ("timeline_read", ffi.new("llmc_span *"), 1, null),
    ):  # fmt: skip
        refused("INVALID", f"llmc_{verb}", "NULL", call=lambda: model.call(verb, *args))
    how, state = ffi.new("llmc_sampling *", [1, 0, 1]), ffi.new("uint64_t *", 1)
    for args in (
        (null, 4, how, state, int32), (logits, 4, null, state, int32), (logits, 4, how, null, int32),
        (logits, 4, how, state, null),
    ):  # fmt: skip
        refused("INVALID", "NULL", call=lambda: driver.check(model.lib, model.lib.llmc_sample(*args)))
    for args in ((null, model.options, ffi.new("llmc_memory *")), (driver.make_config(CONFIG), null, ffi.new("llmc_memory *")),
                 (driver.make_config(CONFIG), model.options, null)):  # fmt: skip
        refused("INVALID", "NULL", call=lambda: driver.check(model.lib, model.lib.llmc_memory_plan(*args)))
    refused(
        "INVALID",
        "NULL",
        call=lambda: driver.check(model.lib, model.lib.llmc_param_info(null, 0, ffi.new("llmc_param *"))),
    )
    refused(
        "INVALID",
        "NULL",
        call=lambda: driver.check(model.lib, model.lib.llmc_param_info(driver.make_config(CONFIG), 0, null)),
    )


@pytest.mark.parametrize("index", [-1, 16, 2**31 - 1])
def test_param_info_index(lib, index):
    out, memory, before = filled("llmc_param *")
    refused(
        "INVALID",
        index,
        15,
        call=lambda: driver.check(lib, lib.llmc_param_info(driver.make_config(CONFIG), index, out)),
    )
    assert bytes(ffi.buffer(memory)) == before


def test_tensor_arguments(model):
    good = {"kind": PARAM, "index": 15, "dtype": FP32, "bytes": 32}
    memory = ffi.new("char[]", b"\x5a" * 64)
    for change, words in (
        ({"kind": -1}, ["kind", -1]), ({"kind": 5}, ["kind", 5]), ({"index": -1}, ["index", -1]),
        ({"index": 16}, ["index", 16]), ({"dtype": 2}, ["dtype", 2]), ({"dtype": -1}, ["dtype", -1]),
        ({"bytes": 31}, [31, 32]), ({"bytes": 33}, [33, 32]), ({"bytes": 0}, [0, 32]), ({"bytes": -1}, [-1, 32]),
        ({"bytes": 32, "dtype": BF16}, [32, 16]), ({"bytes": 2**62}, [2**62]),
    ):  # fmt: skip
        for verb in ("tensor_read", "tensor_write"):
            kind, index, dtype, size = {**good, **change}.values()
            refused("INVALID", f"llmc_{verb}", *words, call=lambda: model.call(verb, kind, index, dtype, memory, size))
    assert bytes(ffi.buffer(memory))[:64] == b"\x5a" * 64
    refused("UNAVAILABLE", "master", call=lambda: model.call("tensor_read", MASTER, 15, FP32, memory, 32))
    refused("UNAVAILABLE", "master", call=lambda: model.call("tensor_write", MASTER, 15, FP32, memory, 32))


def test_bf16_transfers_round_to_nearest_even(model):
    size = CONFIG.num_params  # many values, halves and specials among them
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    values[:8] = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF7FFFFF, 0x00008000, 0x80000000, 1], np.uint32
    ).view(np.float32)
    shape = CONFIG.shapes()["fcw"]
    count = int(np.prod(shape))
    model.write_one("fcw", values[:count].reshape(shape))
    bits = np.empty(count, np.uint16)
    model.call("tensor_read", PARAM, 10, BF16, ffi.from_buffer(bits), bits.nbytes)
    assert np.array_equal(bits, bf16.narrow(values[:count]))
    bits = np.roll(bits, 3)
    model.call("tensor_write", PARAM, 10, BF16, ffi.from_buffer(bits), bits.nbytes)
    assert np.array_equal(model.read_one("fcw").reshape(-1).view(np.uint32), bf16.widen(bits).view(np.uint32))


def test_every_kind_of_tensor_keeps_what_is_written(model):
    random = np.random.default_rng(1)
    written = {}
    for kind in (PARAM, GRAD, ADAM_M, 3):
        for name, shape in CONFIG.shapes().items():
            value = random.standard_normal(shape).astype(np.float32)
            value[CONFIG.vocab :] = 0 if name == "wte" else value[CONFIG.vocab :]
            written[kind, name] = value
            model.write_one(name, value, kind)
    for (kind, name), value in written.items():
        assert np.array_equal(model.read_one(name, kind), value), (kind, name)


def test_new_model_is_all_zero(backend):
    with Engine(CONFIG, 2, 4, backend) as engine:
        for kind in (PARAM, GRAD, ADAM_M, 3):
            assert not any(value.any() for value in engine.read(kind).values())
        assert engine.eval(*batch())[0] == pytest.approx(np.log(CONFIG.vocab), rel=1e-6)


@pytest.mark.parametrize(
    "field, value",
    [
        *(
            (field, value)
            for field in ("learning_rate", "weight_decay", "grad_clip", "max_loss_z", "max_norm_z")
            for value in (-1.0, np.nan)
        ),
        *((field, value) for field in ("learning_rate", "eps") for value in (np.inf, -1e-8)),
        *((field, value) for field in ("beta1", "beta2") for value in (-0.1, 1.0, 1.5, np.nan)),
        ("eps", 0.0),  # rows without gradient would become 0/0
        ("eps", np.nan),
        ("step", 0),
        ("step", -5),
    ],
)
def test_hyper_out_of_range(model, field, value):
    before = model.read()
    model.micro_step(*batch())
    refused("INVALID", field, call=lambda: model.update(**{"learning_rate": 1e-3, field: value}))
    assert all(np.array_equal(before[name], after) for name, after in model.read().items())
    assert model.result(model.update(learning_rate=1e-3)).skipped == 0  # the step is still there to be finished


def test_sample_arguments(lib):
    logits, state, token = ffi.new("float[]", [1, 2, 3]), ffi.new("uint64_t *", 9), ffi.new("int32_t *", -7)
    for vocab, how, word in (
        (0, [1, 0, 1], "vocab"), (-1, [1, 0, 1], "vocab"), (3, [-1, 0, 1], "temperature"),
        (3, [float("nan"), 0, 1], "temperature"), (3, [1, -1, 1], "top_k"), (3, [1, 0, -0.1], "top_p"),
        (3, [1, 0, 1.5], "top_p"), (3, [1, 0, float("nan")], "top_p"),
    ):  # fmt: skip
        refused(
            "INVALID",
            word,
            call=lambda: driver.check(
                lib, lib.llmc_sample(logits, vocab, ffi.new("llmc_sampling *", how), state, token)
            ),
        )
    assert token[0] == -7 and state[0] == 9
    for how in ([1, 99, 1], [1e-30, 0, 1], [1e30, 0, 1], [1, 3, 1e-9]):
        assert lib.llmc_sample(logits, 3, ffi.new("llmc_sampling *", how), state, token) == 0
        assert 0 <= token[0] < 3


# -- slots


def acquire(model, wait_ms=0):
    slot = ffi.new("llmc_slot *")
    model.call("slot_acquire", wait_ms, slot)
    return slot


def test_slot_memory_is_separate_and_counted(model):
    slots = [acquire(model) for _ in range(3)]
    assert sorted(s.index for s in slots) == [0, 1, 2] and {s.count for s in slots} == {8}
    starts = sorted(int(ffi.cast("intptr_t", p)) for s in slots for p in (s.inputs, s.targets))
    assert min(np.diff(starts)) >= 8 * 4


def test_no_slot_left(model):
    out, memory, before = filled("llmc_slot *")
    slots = [acquire(model) for _ in range(3)]
    refused("TIMEOUT", 3, call=lambda: model.call("slot_acquire", 0, out))
    refused("TIMEOUT", 20, call=lambda: model.call("slot_acquire", 20, out))
    assert bytes(ffi.buffer(memory)) == before
    model.call("slot_release", slots[1].index)
    assert acquire(model).index == slots[1].index


def test_waiting_for_a_slot_ends_when_another_thread_uses_one(model):
    """A long wait_ms in a loader thread: the stepping thread's micro-step hands it the slot."""
    slots = [acquire(model) for _ in range(3)]
    slots[0].inputs[0 : slots[0].count] = [0] * 8
    slots[0].targets[0 : slots[0].count] = [1] * 8
    model.call("slot_submit", slots[0].index)
    got = []
    loader = threading.Thread(target=lambda: got.append(acquire(model, 20000).index), daemon=True)
    loader.start()
    loader.join(0.05)
    assert loader.is_alive() and not got
    model.call("micro_step", slots[0].index, 0, 1)
    loader.join(10)
    assert got == [slots[0].index]


def test_slot_states(model):
    """free -> acquired -> submitted -> free; every call out of turn is refused and changes nothing."""
    mean = ffi.new("float *")
    logits = ffi.new("float[]", 2 * 4 * 11)
    uses = {
        "micro_step": (0, 1),
        "eval": (ffi.NULL, mean),
        "logits": (logits, ffi.sizeof(logits)),
    }
    for index in (-1, 3, 2**31 - 1):
        for verb, args in {**uses, "slot_submit": (), "slot_release": ()}.items():
            refused("INVALID", f"llmc_{verb}", index, 2, call=lambda: model.call(verb, index, *args))
    for verb, args in {**uses, "slot_submit": (), "slot_release": ()}.items():
        refused("STATE", f"llmc_{verb}", 0, call=lambda: model.call(verb, 0, *args))
    slot = acquire(model)
    for verb, args in uses.items():
        refused("STATE", f"llmc_{verb}", "submitted", call=lambda: model.call(verb, slot.index, *args))
    slot.inputs[0:8] = slot.targets[0:8] = [0] * 8
    model.call("slot_submit", slot.index)
    refused("STATE", "llmc_slot_submit", call=lambda: model.call("slot_submit", slot.index))
    model.call("slot_release", slot.index)
    refused("STATE", "llmc_slot_release", call=lambda: model.call("slot_release", slot.index))
    for verb, args in uses.items():
        model.call(verb, model.submit(*batch()), *args)  # each consumes its slot:
    assert len({acquire(model).index for _ in range(3)}) == 3


@pytest.mark.parametrize("token", [11, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize("position", [0, 6, 7])
def test_token_out_of_range(model, where, token, position):
    """The message has the place (row and column) and the value; the slot can be mended and submitted."""
    slot = acquire(model)
    slot.inputs[0:8] = slot.targets[0:8] = [10] * 8
    memory = getattr(slot, where)
    memory[position] = token
    message = refused("INVALID", where.removesuffix("s"), token, 10, call=lambda: model.call("slot_submit", slot.index))
    assert re.search(rf"row {position // 4}\b.*position {position % 4}\b", message), message
    memory[position] = 0
    model.call("slot_submit", slot.index)
    model.call("micro_step", slot.index, 0, 1)
    assert np.isfinite(model.result(model.update()).loss)


# -- steps and results


def test_order_of_micro_steps(model):
    lost, steps = model.read(), batch()
    refused("STATE", "micro", call=model.update)
    for i, n in ((1, 2), (2, 3)):
        slot = model.submit(*steps)
        refused("STATE", i, n, call=lambda: model.call("micro_step", slot, i, n))
        model.call("slot_release", slot)
    slot = model.submit(*steps)
    for i, n in ((0, 0), (0, -1), (-1, 1), (1, 1), (5, 2)):
        with pytest.raises(EngineError) as caught:
            model.call("micro_step", slot, i, n)
        assert caught.value.status in ("INVALID", "STATE") and "micro" in caught.value.message
    model.call("micro_step", slot, 0, 3)  # the refusals didn't consume it
    refused("STATE", 1, 3, call=model.update)
    slot = model.submit(*steps)
    for i, n in ((2, 3), (1, 2), (1, 4)):
        refused("STATE", call=lambda: model.call("micro_step", slot, i, n))
    model.call("micro_step", slot, 1, 3)
    model.micro_step(*steps, 2, 3)
    slot = model.submit(*steps)
    refused("STATE", call=lambda: model.call("micro_step", slot, 3, 3))
    model.call("slot_release", slot)
    loss = model.result(model.update()).loss
    refused("STATE", "micro", call=model.update)
    assert loss == pytest.approx(model.eval(*steps)[0], rel=1e-6)  # the mean of three equal losses
    assert all(np.array_equal(lost[name], now) for name, now in model.read().items())  # lr 0


def test_an_abandoned_step_can_be_begun_again(model):
    """An exception between two micro-steps in the caller must not leave the model stuck."""
    model.micro_step(*batch(1), 0, 2)
    loss, grads = model.loss_and_grads(*batch(2))
    again, same = model.loss_and_grads(*batch(2))
    assert loss == again and all(np.array_equal(grads[name], same[name]) for name in grads)


def test_tickets(model):
    """results=2: the last two stay readable, again and again; older and future ones are refused."""
    tickets, losses = [], []
    for seed in range(5):
        model.micro_step(*batch(seed))
        tickets.append(model.update(step=seed + 1))
        losses.append(model.result(tickets[-1]).loss)
    assert len(set(tickets)) == 5
    for ticket, loss in zip(tickets[-2:], losses[-2:], strict=True):
        for wait_ms in (-1, 0, 100):
            result = model.result(ticket, wait_ms)
            assert (result.ticket, result.loss) == (ticket, loss)
    out, memory, before = filled("llmc_step_result *")
    for ticket in (*tickets[:3], tickets[-1] + 1, -1, 2**62, -(2**62)):
        refused("STATE", ticket, call=lambda: model.call("result", ticket, -1, out))
    assert bytes(ffi.buffer(memory)) == before
    assert len(set(losses)) == 5


def test_results_can_come_later(backend):
    """Two updates in flight: their results are those of the same steps taken one at a time."""
    params, runs = oracle.random_params(CONFIG), []
    for lag in (0, 1, 3):
        with Engine(CONFIG, 2, 4, backend, params, results=4) as engine:
            losses, pending = [], []
            for step in range(8):
                engine.micro_step(*batch(step))
                pending.append(engine.update(step=step + 1, learning_rate=1e-2))
                if len(pending) > lag:
                    losses.append(engine.result(pending.pop(0)).loss)
            losses += [engine.result(ticket).loss for ticket in pending]
            runs.append(losses)
    assert runs[0] == runs[1] == runs[2] and len(set(runs[0])) == 8


def run_steps(engine, steps=20):
    return [engine.step([batch(s)], step=s + 1, learning_rate=1e-2).loss for s in range(steps)]


def test_a_loader_thread_beside_the_steps(backend):
    """Slots are acquired, filled and submitted by one thread, used by another: the same losses."""
    params, ready = oracle.random_params(CONFIG), queue.Queue()
    with Engine(CONFIG, 2, 4, backend, params, results=30) as engine:
        expected = run_steps(engine)
    with Engine(CONFIG, 2, 4, backend, params, results=30) as engine:
        loader = threading.Thread(target=lambda: [ready.put(engine.submit(*batch(s))) for s in range(20)], daemon=True)
        loader.start()
        tickets = []
        for step in range(20):
            engine.call("micro_step", ready.get(timeout=20), 0, 1)
            tickets.append(engine.update(step=step + 1, learning_rate=1e-2))
        loader.join()
        assert [engine.result(ticket).loss for ticket in tickets] == expected


def test_two_models_in_two_threads(backend):
    params, found = oracle.random_params(CONFIG), {}
    with Engine(CONFIG, 2, 4, backend, params) as engine:
        expected = run_steps(engine)

    def train(name):
        with Engine(CONFIG, 2, 4, backend, params) as engine:
            found[name] = run_steps(engine)

    threads = [threading.Thread(target=train, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: expected, 1: expected}


def test_freed_with_work_under_way(backend):
    """Acquired, submitted and half-used slots, updates nobody asked about: freeing waits and goes."""
    params = oracle.random_params(CONFIG)
    for _ in range(5):
        engine = Engine(CONFIG, 2, 4, backend, params)
        for step in range(3):
            engine.micro_step(*batch(step))
            engine.update(step=step + 1)
        engine.micro_step(*batch(), 0, 2)
        engine.submit(*batch())
        acquire(engine, -1)
        engine.close()
    with Engine(CONFIG, 2, 4, backend, params) as engine:
        assert np.isfinite(run_steps(engine, 2)).all()


def test_rounding_generator(model):
    """It moves once per update, remembers where it was, and goes where it is set."""
    now, before = ffi.new("uint64_t *"), ffi.new("uint64_t *")

    def state():
        model.call("rng_get", now, before)
        return now[0], before[0]

    seen = [state()[0]]
    for step in range(3):
        model.step([batch(), batch()], step=step + 1)
        model.eval(*batch())
        assert state()[1] == seen[-1]
        seen.append(state()[0])
    assert len(set(seen)) == 4
    model.call("rng_set", seen[1])
    assert state()[0] == seen[1]
    model.step([batch()])
    assert state() == (seen[2], seen[1])


# -- a snapshot


def read_snapshot(engine, kind, name, dtype=FP32):
    value = np.empty(CONFIG.shapes()[name], np.float32 if dtype == FP32 else np.uint16)
    engine.call("snapshot_read", kind, engine.names.index(name), dtype, ffi.from_buffer(value), value.nbytes)
    return value


def state_of(engine):
    """Everything that a snapshot keeps, as of now."""
    guard = ffi.new("llmc_guard *")
    engine.call("guard_get", guard)
    return [engine.read(kind) for kind in (PARAM, ADAM_M, driver.ADAM_V)], bytes(ffi.buffer(guard))


def test_a_snapshot_keeps_its_moment(model):
    for first in (0, 3):  # the second one, too, and in the memory of the first
        for step in range(first, first + 3):
            model.step([batch(step)], step=step + 1, learning_rate=1e-2)
        expected, expected_guard = state_of(model)
        model.call("snapshot_take")
        for step in range(3):
            model.step([batch(step)], step=step + 9, learning_rate=1e-2)
        now, _ = state_of(model)
        for kind, values, later in zip((PARAM, ADAM_M, driver.ADAM_V), expected, now, strict=True):
            for name, value in values.items():
                assert np.array_equal(read_snapshot(model, kind, name), value), (kind, name)
            assert any(not np.array_equal(value, later[name]) for name, value in values.items()), kind
        assert np.array_equal(read_snapshot(model, PARAM, "fcw", BF16), bf16.narrow(expected[0]["fcw"]))
        guard = ffi.new("llmc_guard *")
        model.call("snapshot_guard", guard)
        assert bytes(ffi.buffer(guard)) == expected_guard and guard.loss_seen > 0
        model.call("snapshot_release")


def test_what_a_snapshot_refuses(model):
    memory = ffi.new("float[]", 8)
    refused("STATE", "llmc_snapshot_take", call=lambda: model.call("snapshot_read", PARAM, 15, FP32, memory, 32))
    refused("STATE", call=lambda: model.call("snapshot_guard", ffi.new("llmc_guard *")))
    model.call("snapshot_release")
    model.call("snapshot_take")
    refused("STATE", "released", call=lambda: model.call("snapshot_take"))
    refused("INVALID", "gradients", call=lambda: model.call("snapshot_read", GRAD, 15, FP32, memory, 32))
    refused("INVALID", "bytes", 31, 32, call=lambda: model.call("snapshot_read", PARAM, 15, FP32, memory, 31))
    refused("INVALID", "index", call=lambda: model.call("snapshot_read", PARAM, 16, FP32, memory, 32))
    refused("UNAVAILABLE", "master", call=lambda: model.call("snapshot_read", MASTER, 15, FP32, memory, 32))
    model.call("snapshot_read", PARAM, 15, FP32, memory, 32)
    model.call("snapshot_release")
    refused("STATE", call=lambda: model.call("snapshot_read", PARAM, 15, FP32, memory, 32))
    model.call("snapshot_take")


def test_a_saving_thread_beside_the_steps(backend):
    """A thread reads a snapshot while steps go on: the bits of its moment, and the steps' own are what they were."""
    params = oracle.random_params(CONFIG)
    with Engine(CONFIG, 2, 4, backend, params) as engine:
        expected_losses = [*run_steps(engine, 5)]
        expected = engine.read()
        expected_losses += run_steps(engine, 200)
    found = []
    with Engine(CONFIG, 2, 4, backend, params, stress=200) as engine:
        losses = run_steps(engine, 5)
        engine.call("snapshot_take")

        def save():
            for _ in range(20):
                found.append({name: read_snapshot(engine, PARAM, name) for name in engine.names})

        thread = threading.Thread(target=save)
        thread.start()
        losses += run_steps(engine, 200)
        thread.join()
    assert losses == expected_losses and len(found) == 20
    assert all(np.array_equal(values[name], expected[name]) for values in found for name in expected)


LITTLE_ROOM = """
import resource
import oracle
from engine import Engine, EngineError, tiny_config
config = tiny_config(channels=512, vocab=20000, context=16)
batch = oracle.random_batch(config, 1, 4)
with Engine(config, 1, 4) as engine:
    engine.step([batch])
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
    for _ in range(3):
        try:
            engine.call("snapshot_take")
            raise SystemExit("it fitted")
        except EngineError as error:
            assert error.status == "NO_MEMORY" and "needed" in error.message, error
        engine.step([batch])
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    engine.call("snapshot_take")
"""


def test_a_snapshot_that_does_not_fit_changes_nothing():
    """Refused as often as it is asked for; the model goes on, and takes one when there is room."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([folder, os.path.dirname(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_ROOM], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_wrong_sizes_for_logits_and_generation(model):
    logits, tokens = ffi.new("float[]", 1000), ffi.new("int32_t[]", [1] * 20)
    slot = model.submit(*batch())
    for size in (0, -1, 2 * 4 * 11 * 4 - 1, 2 * 4 * 11 * 4 + 4, 2 * 4 * 128 * 4):
        refused("INVALID", size, 2 * 4 * 11 * 4, call=lambda: model.call("logits", slot, logits, size))
    model.call("logits", slot, logits, 2 * 4 * 11 * 4)
    for rows, n, word in ((0, 1, "rows"), (3, 1, "rows"), (-1, 1, "rows"), (1, 0, "n"), (1, 5, "n"), (1, -1, "n")):
        refused("INVALID", word, call=lambda: model.call("prefill", tokens, rows, n, logits))
    tokens[3] = 11
    refused("INVALID", 3, 11, 10, call=lambda: model.call("prefill", tokens, 1, 4, logits))
    refused("STATE", "prefill", call=lambda: model.call("decode", tokens, logits))
    model.call("prefill", tokens, 2, 1, logits)
    tokens[1] = -5
    refused("INVALID", -5, call=lambda: model.call("decode", tokens, logits))
    tokens[1] = 0
    model.call("decode", tokens, logits)


def test_errors_belong_to_their_thread(lib):
    """Another thread sees neither this thread's message nor overwrites it."""
    seen = []

    def other():
        seen.append(driver.message(lib))
        lib.llmc_device_info(-123, ffi.new("llmc_device *"))
        seen.append(driver.message(lib))

    lib.llmc_device_info(-77, ffi.new("llmc_device *"))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen[0] == "" and "-123" in seen[1]
    assert "-77" in driver.message(lib)


# -- memory


def test_memory_plan(lib):
    config = tiny_config(layers=3, channels=64)
    totals = []
    for recompute in range(3):
        plan = ffi.new("llmc_memory *")
        options = driver.make_options(lib, batch=4, seq_len=16, precision=FP32, recompute=recompute)
        driver.check(lib, lib.llmc_memory_plan(driver.make_config(config), options, plan))
        parts = [
            getattr(plan, name)
            for name in ("parameters", "gradients", "optimizer", "activations", "logits", "workspace", "batches")
        ]
        assert min(parts) > 0 and sum(parts) == plan.total
        assert plan.parameters >= 4 * config.num_params and plan.optimizer >= 2 * plan.parameters
        assert plan.logits >= 4 * 16 * config.padded_vocab * 4
        assert 0 < plan.device_free <= plan.device_total
        totals.append(plan.total)
        assert plan.total_by_recompute[recompute] == plan.total
    assert list(plan.total_by_recompute) == totals and totals[0] > totals[1] > totals[2]
    chunked = ffi.new("llmc_memory *")
    options = driver.make_options(lib, batch=4, seq_len=16, precision=FP32, head_chunks=4, recompute=2)
    driver.check(lib, lib.llmc_memory_plan(driver.make_config(config), options, chunked))
    assert chunked.logits * 4 == plan.logits


def resident():
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def used(lib, backend):
    """Bytes taken: the resident ones of this process, or those of the device, which nobody else uses."""
    if backend == "cpu":
        return resident()
    plan, options = ffi.new("llmc_memory *"), driver.make_options(lib, batch=1, seq_len=1, precision=FP32)
    driver.check(lib, lib.llmc_memory_plan(driver.make_config(CONFIG), options, plan))
    return plan.device_total - plan.device_free


def test_memory_used_is_memory_planned(lib, backend):
    """Creation plus a step takes what the plan says, and freeing gives it back."""
    config = tiny_config(layers=2, channels=256, vocab=5000, context=128, heads=4)
    plan = ffi.new("llmc_memory *")

    options = driver.make_options(lib, batch=8, seq_len=128, precision=FP32)
    driver.check(lib, lib.llmc_memory_plan(driver.make_config(config), options, plan))
    total = plan.total
    with Engine(config, 8, 128, backend) as engine:  # threads, handles, kernels: what stays for the next model
        engine.step([oracle.random_batch(config, 8, 128)])
    gc.collect()
    before = used(lib, backend)
    with Engine(config, 8, 128, backend) as engine:
        engine.step([oracle.random_batch(config, 8, 128)])
        engine.read_one("lnfb", ADAM_M)
        grown = used(lib, backend) - before
    left = used(lib, backend) - before
    assert total > 100 << 20
    # the plan leaves out handles, BLAS workspaces and host staging; the CPU's zero pages aren't resident
    assert 0.8 * total <= grown <= 1.1 * total + (64 << 20), (grown, total)
    assert left < 0.05 * total, (left, total)


def test_too_large_a_model_leaves_nothing_behind(lib, backend):
    """Twenty times: a model that can't fit is refused with needed and free bytes, then a small one works."""
    config = tiny_config(layers=48, channels=1600, heads=25, vocab=50257, context=1024)
    params = oracle.random_params(CONFIG)
    before = None
    for attempt in range(20):
        message = refused("NO_MEMORY", call=lambda: Engine(config, 1 << 14, 1024, backend))
        numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", message)]
        assert numbers[0] > 1e13 > numbers[1], message  # needed, then free
        assert all(word in message for word in ("needed", "recompute", "batch")), message
        with Engine(CONFIG, 2, 4, backend, params) as engine:
            loss = engine.step([batch()]).loss
        expected = float(oracle.loss(oracle.widened(params), *batch(), CONFIG))
        assert loss == pytest.approx(expected, rel=1e-4)
        if attempt == 4:
            before = used(lib, backend)
    assert used(lib, backend) - before < 2 << 20
    plan = ffi.new("llmc_memory *")
    options = driver.make_options(lib, batch=1 << 14, seq_len=1024, precision=FP32)
    driver.check(lib, lib.llmc_memory_plan(driver.make_config(config), options, plan))  # planning it is fine
    assert plan.total > 10 << 40


# -- looking inside


def test_timeline(model):
    count = ffi.new("int32_t *", -1)
    spans = ffi.new("llmc_span[]", 4096)
    refused("STATE", "arm", call=lambda: model.call("timeline_read", spans, 10, count))
    assert count[0] == -1
    model.step([batch()])
    refused("STATE", call=lambda: model.call("timeline_read", spans, 10, count))  # not armed, not recorded
    model.call("timeline_arm")
    refused("STATE", call=lambda: model.call("timeline_read", spans, 10, count))  # armed, not yet recorded
    model.step([batch(), batch(1)])
    refused("INVALID", -1, call=lambda: model.call("timeline_read", spans, -1, count))
    model.call("timeline_read", ffi.NULL, 0, count)
    total = count[0]
    assert 20 < total <= 4096
    ffi.buffer(spans)[:] = b"\x5a" * ffi.sizeof(spans)
    model.call("timeline_read", spans, 3, count)
    size = ffi.sizeof("llmc_span")
    assert count[0] == total and bytes(ffi.buffer(spans))[3 * size : 4 * size] == b"\x5a" * size
    model.call("timeline_read", spans, 4096, count)
    spans = [spans[i] for i in range(total)]
    assert {ffi.string(s.lane).decode() for s in spans} >= {"compute"}
    names = [ffi.string(s.name).decode() for s in spans]
    assert all(names) and any("attention" in name for name in names) and any("adamw" in name for name in names)
    assert names.count("adamw") == 1 and names.count("embedding") == 2  # one update, two micro-steps
    assert all(s.end_us >= s.start_us and -1 <= s.layer < CONFIG.layers for s in spans)
    assert min(s.start_us for s in spans if ffi.string(s.lane) == b"compute") >= 0
    model.step([batch()])  # not armed: the recorded step stays
    model.call("timeline_read", ffi.NULL, 0, count)
    assert count[0] == total


def test_timeline_costs_no_bits(backend):
    """A recorded step computes what an unrecorded one does."""
    params, runs = oracle.random_params(CONFIG), []
    for armed in (False, True):
        with Engine(CONFIG, 2, 4, backend, params) as engine:
            losses = []
            for step in range(4):
                if armed:
                    engine.call("timeline_arm")
                losses.append(engine.step([batch(step)], step=step + 1, learning_rate=1e-2).loss)
            runs.append((losses, engine.read_one("wte").tobytes()))
    assert runs[0] == runs[1]


def test_device_time_of_a_step(model):
    result = model.step([batch()])
    assert np.isnan(result.device_ms) or 0 < result.device_ms < 1e5


# -- any order at all


def test_random_calls_never_break_a_model(backend):
    """Thousands of calls in random order with random arguments: a status each, and a sound model afterwards."""
    params, random = oracle.random_params(CONFIG), np.random.default_rng(0)
    logits, tokens = ffi.new("float[]", 2000), ffi.new("int32_t[]", 64)
    out = {
        name: ffi.new(name + " *")
        for name in ("llmc_slot", "llmc_step_result", "llmc_guard", "int64_t", "int32_t", "float")
    }
    hyper = ffi.new("llmc_hyper *", {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "step": 1})
    seen = set()

    def number(*values):
        return int(random.choice(values))

    with Engine(CONFIG, 2, 4, backend, params) as engine:
        verbs = {
            "slot_acquire": lambda: (0, out["llmc_slot"]),
            "slot_submit": lambda: (number(-1, 0, 1, 2, 3),),
            "slot_release": lambda: (number(-1, *[0, 1, 2] * 2, 3),),
            "micro_step": lambda: (number(0, 1, 2), number(-1, 0, 0, 1, 2), number(0, 1, 1, 2)),
            "update": lambda: (hyper, out["int64_t"]),
            "result": lambda: (number(-1, 0, 1, 2, 5, 50), 0, out["llmc_step_result"]),
            "eval": lambda: (number(0, 1, 2), ffi.NULL, out["float"]),
            "logits": lambda: (number(0, 1, 2), logits, number(0, 352, 352)),
            "prefill": lambda: (tokens, number(0, 1, 2, 3), number(0, 1, 4, 5), logits),
            "decode": lambda: (tokens, logits),
            "guard_get": lambda: (out["llmc_guard"],),
            "snapshot_take": lambda: (),
            "snapshot_read": lambda: (number(PARAM, GRAD, driver.ADAM_V, 9), number(-1, 15), FP32, logits, 32),
            "snapshot_guard": lambda: (out["llmc_guard"],),
            "snapshot_release": lambda: (),
            "timeline_arm": lambda: (),
            "timeline_read": lambda: (ffi.NULL, 0, out["int32_t"]),
            "synchronize": lambda: (),
        }
        names = [*verbs, "slot_acquire", "slot_submit", "slot_submit", "micro_step", "micro_step", "update"]
        for slot in [acquire(engine) for _ in range(3)]:  # memory of a slot nobody filled may hold anything
            slot.inputs[0:8] = slot.targets[0:8] = list(range(8))
            engine.call("slot_release", slot.index)
        for _ in range(6000):
            verb = names[random.integers(len(names))]
            status = getattr(engine.lib, "llmc_" + verb)(engine.handle, *verbs[verb]())
            seen.add((verb, STATUS[status]))
            assert STATUS[status] in ("OK", "INVALID", "STATE", "TIMEOUT"), (verb, driver.message(engine.lib))
        # Bring it back to rest, then a step must give what a new model with these weights gives.
        for slot in range(3):
            engine.lib.llmc_slot_release(engine.handle, slot)
        weights = engine.read()
        loss, grads = engine.loss_and_grads(*batch(3))
    assert {verb for verb, status in seen if status == "OK"} == set(verbs)
    with Engine(CONFIG, 2, 4, backend, weights) as fresh:
        expected, expected_grads = fresh.loss_and_grads(*batch(3))
    assert loss == expected and all(np.array_equal(grads[name], expected_grads[name]) for name in grads)

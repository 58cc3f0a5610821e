"""The GPT2 class: arguments, lifetimes, batches, tensors, results, generation. (test_golden.py has the numbers.)"""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
from test_native import run_python

from pyllmc import GPT2, GPT2Config, _native
from pyllmc.checkpoint import read_checkpoint
from pyllmc.errors import FormatError, InvalidArgument, ResultTimeout, StateError

B, T = 2, 8
CONFIG = GPT2Config(layers=2, heads=2, channels=32, vocab=61, context=12)


def make(config=CONFIG, batch=B, seq_len=T, **options):
    return GPT2.from_config(config, batch=batch, seq_len=seq_len, device="cpu", **options)


@pytest.fixture
def model():
    with make() as made:
        yield made


def batch(rng=0, shape=(B, T), vocab=CONFIG.vocab):
    tokens = np.random.default_rng(rng).integers(0, vocab, (*shape[:-1], shape[-1] + 1))
    return tokens[..., :-1], tokens[..., 1:]


def weights(model):
    return {name: array.copy() for name, array in model.params.items()}


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


# -- arguments


def test_misspelt_keywords_name_the_nearest(model):
    with pytest.raises(TypeError, match="did you mean 'recompute'"):
        make(recompote=1)
    with pytest.raises(TypeError, match="did you mean 'seq_len'"):
        GPT2.from_config(CONFIG, batch=1, seq_len=4, seqlen=4)
    with pytest.raises(TypeError, match="did you mean 'weight_decay'"):
        model.step(*batch(), weight_decoy=0.1)
    with pytest.raises(TypeError, match="lr and learning_rate"):
        model.step(*batch(), lr=1.0, learning_rate=1.0)
    assert model.updates == 0


@pytest.mark.parametrize(
    "options, part",
    [({"batch": 0}, "batch"), ({"seq_len": 13}, "seq_len"), ({"batch": 1.5}, "batch must be an integer"),
     ({"batch": 2**40}, "batch must be an integer"), ({"precision": "fp61"}, "did you mean 'fp16'|fp32"),
     ({"prefetch": "hots"}, "did you mean 'host'"), ({"recompute": -1}, "recompute"), ({"slots": 1}, "slots"),
     ({"init": "randon"}, "did you mean 'random'"), ({"comm_id": "x"}, "comm_id must be 128 bytes")],
)  # fmt: skip
def test_bad_options(options, part):
    with pytest.raises(InvalidArgument, match=part):
        make(**options)


def test_options_are_those_of_c():
    with make(head_chunks=2, prefetch="off", deterministic=True) as model:
        assert (model.options.head_chunks, model.options.prefetch, model.options.deterministic) == (2, 0, 1)
        assert model.options.slots >= 2 and model.hyper_default()["beta2"] == pytest.approx(0.95)


@pytest.mark.parametrize(
    "inputs, part",
    [([[1, 2, 3]], "must be"), (np.zeros((B, T), np.float32), "integers"), ([], "empty"), ([[1, 2], [3]], "integers"),
     ("text", "integers"), (np.zeros((B, T), bool), "integers"), (np.full((B, T), 61), "is 61, expected 0 to 60"),
     (np.full((B, T), -1), "is -1"), (np.full((B, T), 2**32 + 5, np.uint64), "expected 0 to 60"),
     (np.zeros((2, B, T + 1), int), "must be"), (None, "integers")],
)  # fmt: skip
def test_bad_tokens(model, inputs, part):
    before = weights(model)
    with pytest.raises(InvalidArgument, match=part):
        model.step(inputs, batch()[1])
    with pytest.raises(InvalidArgument):
        model.eval_loss(batch()[0], inputs)
    assert same(before, weights(model)) and model.updates == 0
    assert model.step(*batch()).result().finite


def test_bad_token_is_located(model):
    inputs, targets = (a.copy() for a in batch())
    targets[1, 5] = 61
    with pytest.raises(InvalidArgument, match=r"targets\[0, 1, 5\] is 61"):
        model.step(inputs, targets)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64, ">i4"])
def test_any_integer_dtype_and_layout(dtype):
    inputs, targets = batch()
    odd = np.asfortranarray(np.repeat(inputs, 2, axis=1).astype(dtype))[:, ::2]
    odd.setflags(write=False)
    with make() as a, make() as b:
        plain = a.step(inputs, targets).loss
        assert b.step(odd, targets.tolist()).loss == plain
        assert same(weights(a), weights(b))


# -- batches in flight (STR-12)


def test_temporaries_may_die_at_once():
    expected, found = [], []
    for losses, hostile in ((expected, False), (found, True)):
        with make() as model:
            handles = []
            for i in range(6):
                inputs, targets = batch(i)
                handles.append(model.step(inputs, targets, lr=1e-2))
                if hostile:
                    inputs[:] = targets[:] = 0
                    del inputs, targets
                    gc.collect()
                    np.full((64, B, T), 7)
            losses += [handle.loss for handle in handles]
    assert found == expected


def test_results_outlive_the_engines_records(model):
    """Handles that are kept are read before their record is used again; forgotten ones cost nothing."""
    handles = [model.step(*batch(i)) for i in range(3 * model.options.results)]
    losses = [handle.result().loss for handle in handles]
    assert all(np.isfinite(losses)) and len(set(losses)) == len(losses)
    assert handles[0].done and "loss=" in repr(handles[0])


def test_each_update_takes_the_options_of_its_own_call(model):
    """What a call doesn't give has C's default, whatever earlier calls gave."""
    array = np.array(0.0)  # changes in place
    calls = [
        {"lr": 1e-2}, {"lr": 2e-2}, {}, {"lr": np.float32(1e-2), "beta1": 0.5}, {"lr": 0, "beta1": 0.5}, {"lr": "1e-3", "beta1": 0.5},
        {"learning_rate": 3e-2, "beta1": 0.5}, {"lr": 1e-2, "weight_decay": array}, {"lr": 1e-2, "weight_decay": array},
        {"lr": 1e-2, "step": 9}, {"lr": 1e-2}, {"lr": None, "beta1": None},
    ]  # fmt: skip
    step, defaults = 0, model.hyper_default()
    for given in calls:
        array += 0.25
        model.backward(*batch())
        model.update(**given).result()
        step = given.get("step") or step + 1
        named = {"learning_rate" if name == "lr" else name: value for name, value in given.items() if value is not None}
        wanted = {**defaults, **{name: float(value) for name, value in named.items()}, "step": step}
        assert _native.as_dict(model.library.ffi, model._hyper[0]) == {
            name: pytest.approx(value, rel=1e-6) for name, value in wanted.items()
        }
        assert model.updates == step
    for bad in ({"lr": "fast"}, {"lr": 1j}, {"lr": 10**400}, {"beta1": "fast"}):
        model.backward(*batch())
        with pytest.raises(InvalidArgument, match="must be a number"):
            model.update(**bad)
        model.update(lr=1e-3, beta1=0.9)
        assert model._hyper.learning_rate == pytest.approx(1e-3)


def test_slots_by_hand(model):
    inputs, targets = batch()
    with model.acquire_slot() as slot:
        assert slot.inputs.shape == (B, T) and slot.inputs.dtype == np.int32
        slot.inputs[:], slot.targets[:] = inputs, targets
        with pytest.raises(StateError, match="is acquired, expected submitted"):
            model.micro_step(slot)
        slot.submit()
    with pytest.raises(ValueError, match="read-only"):
        slot.inputs[0, 0] = 1
    model.micro_step(slot)
    with pytest.raises(StateError, match="is consumed"):
        model.micro_step(slot)
    by_hand = model.update(lr=1e-3).loss
    with make() as other:
        assert other.step(inputs, targets, lr=1e-3).loss == by_hand


def test_a_refused_slot_can_be_corrected(model):
    slot = model.acquire_slot()
    slot.inputs[:], slot.targets[:] = batch()
    slot.inputs[1, 3] = CONFIG.vocab
    with pytest.raises(InvalidArgument, match="61"):
        slot.submit()
    slot.inputs[1, 3] = 0
    slot.submit()
    assert np.isfinite(model.eval_slot(slot))


def test_slots_are_given_back(model):
    for _ in range(3 * model.options.slots):
        with model.acquire_slot(timeout=5):
            pass
        model.acquire_slot(timeout=5).release()
    held = [model.acquire_slot(timeout=5) for _ in range(model.options.slots)]
    with pytest.raises(ResultTimeout, match="not ready within 0.01 s"):
        model.acquire_slot(timeout=0.01)
    held.pop().release()
    model.acquire_slot(timeout=5)


def test_control_c_after_the_engine_took_the_batch_stays_control_c(model):
    """Not an error about the slot, which is noted as consumed a moment later."""
    with pytest.raises(KeyboardInterrupt), model.acquire_slot() as slot:
        slot.inputs[:], slot.targets[:] = batch()
        slot.submit()
        model.handle.call("llmc_micro_step", slot.index, 0, 1)
        raise KeyboardInterrupt
    assert np.isfinite(model.update(lr=1e-3).result(timeout=60).loss) and model.updates == 1


def test_a_failed_call_gives_its_slot_back(model, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model, "micro_step", interrupted)
        patch.setattr(model, "eval_slot", interrupted)
        for call in (model.step, model.eval_loss) * model.options.slots:
            with pytest.raises(KeyboardInterrupt):
                call(*batch())
    assert [model.acquire_slot(timeout=5) for _ in range(model.options.slots)]


def test_update_without_micro_step(model):
    with pytest.raises(StateError):
        model.update(lr=1e-3)
    assert model.updates == 0


def test_accumulation_is_a_mean():
    """NUM-01: the same four rows as one, two and four micro-batches."""
    inputs, targets = batch(3, (4, T))
    found = []
    for rows in (4, 2, 1):
        with make(batch=rows) as model:
            shape = (4 // rows, rows, T)
            result = model.step(inputs.reshape(shape), targets.reshape(shape), lr=1e-2).result()
            found.append((result.loss, result.grad_norm, weights(model)))
    for loss, norm, params in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5) and norm == pytest.approx(found[0][1], rel=1e-5)
        for name, array in params.items():
            np.testing.assert_allclose(array, found[0][2][name], rtol=0, atol=1e-5)


# -- tensors


def test_tensors_by_name(model):
    assert list(model.params) == list(CONFIG.shapes()) and len(model.grads) == 16
    for name, shape in CONFIG.shapes().items():
        assert model.params[name].shape == model.m[name].shape == shape
    new = np.random.default_rng(1).normal(size=(CONFIG.vocab, 32))
    model.params["wte"] = new
    read = model.params["wte"]
    np.testing.assert_array_equal(read[: CONFIG.vocab], new.astype(np.float32))
    assert not read[CONFIG.vocab :].any()
    read[:] = 0  # a copy
    assert model.params["wte"].any()
    with pytest.raises(KeyError, match="did you mean 'qkvw'"):
        model.params["qvkw"]
    with pytest.raises(InvalidArgument, match=r"qkvb has shape \(2, 96\), got \(3,\)"):
        model.params["qkvb"] = [1, 2, 3]
    with pytest.raises(InvalidArgument, match="numbers"):
        model.params["qkvb"] = "text"


def test_guard_and_rounding_state(model):
    model.step(*batch()).result()
    guard = model.guard
    assert guard["loss_seen"] == 1 and len(guard["loss"]) == 128
    with make() as other:
        other.guard = guard
        assert other.guard == guard
        other.rng = 12345
        assert other.rng[0] == 12345
        with pytest.raises(InvalidArgument, match="guard needs loss, norm"):
            other.guard = {"loss": []}


def test_memory_and_timeline(model):
    plan = model.memory
    assert plan.total == GPT2.memory_plan(CONFIG, batch=B, seq_len=T, device="cpu").total > plan.parameters > 0
    with pytest.raises(StateError):
        model.timeline()
    model.arm_timeline()
    model.step(*batch()).result()
    spans = model.timeline()
    assert spans and all(span.end_us >= span.start_us >= 0 for span in spans)
    assert {span.layer for span in spans} == {None, 0, 1}


# -- files


def test_save_and_load(model, tmp_path):
    model.step(*batch(), lr=1e-2).result()
    model.save(tmp_path / "a.bin")
    model.save(tmp_path / "b.bin", dtype="bf16")
    assert [read_checkpoint(tmp_path / f"{name}.bin").dtype for name in "ab"] == ["fp32", "bf16"]
    with GPT2.from_checkpoint(tmp_path / "a.bin", batch=B, seq_len=T, device="cpu") as again:
        assert again.config == CONFIG and same(weights(again), weights(model))
        assert again.eval_loss(*batch()) == model.eval_loss(*batch())
    with pytest.raises(InvalidArgument, match="did you mean 'bf16'"):
        model.save(tmp_path / "c.bin", dtype="bf61")
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin"]


def test_a_snapshot(model):
    """As of its call, read only, one at a time; a forgotten one is released when it is gone."""
    model.step(*batch(), lr=1e-2).result()
    before, rng, guard = weights(model), model.rng, model.guard
    with model.snapshot() as snapshot:
        model.step(*batch(1), lr=1e-2).result()
        assert same(snapshot.params, before) and not same(before, model.params)
        assert (snapshot.updates, snapshot.rng, snapshot.guard) == (1, rng, guard)
        assert (model.updates, model.rng == rng, model.guard["loss_seen"]) == (2, False, 2)
        assert set(snapshot.m) == set(model.m) and snapshot.v["wte"].shape == model.param_shapes["wte"]
        with pytest.raises(TypeError):
            snapshot.params["wte"] = before["wte"]
        with pytest.raises(StateError, match="released"):
            model.snapshot()
    with pytest.raises(StateError, match="no snapshot"):
        snapshot.params["wte"]
    forgotten = model.snapshot()
    del forgotten
    gc.collect()
    last = model.snapshot()
    model.close()
    with pytest.raises(StateError, match="closed"):
        last.guard  # noqa: B018
    last.close()


def test_unreadable_checkpoints(tmp_path):
    (tmp_path / "bad.bin").write_bytes(b"nothing of use" * 100)
    with pytest.raises(FormatError, match="bad.bin"):
        GPT2.from_checkpoint(tmp_path / "bad.bin", batch=1, seq_len=4, device="cpu")
    with pytest.raises(FileNotFoundError):
        GPT2.from_checkpoint(tmp_path / "none.bin", batch=1, seq_len=4, device="cpu")
    with pytest.raises(InvalidArgument, match="a folder, expected a checkpoint .*from_pretrained"):
        GPT2.from_checkpoint(tmp_path, batch=1, seq_len=4, device="cpu")
    with pytest.raises(InvalidArgument, match=r"bad.bin: a file, which GPT2.from_checkpoint reads"):
        GPT2.from_pretrained(tmp_path / "bad.bin", batch=1, seq_len=4, device="cpu")
    with pytest.raises(InvalidArgument, match="unknown model descriptor 'd13'.*d12"):
        GPT2.from_descriptor("d13", batch=1, seq_len=4, device="cpu")


# -- evaluation and generation


def test_eval_shapes(model):
    inputs, targets = batch(5, (3, B, T))
    losses = model.eval_loss(inputs, targets, per_position=True)
    assert losses.shape == (3, B, T) and losses.dtype == np.float32
    assert model.eval_loss(inputs, targets) == pytest.approx(losses.mean(), rel=1e-6)
    assert model.eval_loss(inputs[0], targets[0], per_position=True).shape == (B, T)


def test_logits_of_any_smaller_shape(model):
    tokens = batch()[0]
    full = model.logits(tokens)
    assert full.shape == (B, T, CONFIG.vocab)
    np.testing.assert_allclose(model.logits(tokens[0, :3]), full[0, :3], atol=1e-6)
    np.testing.assert_allclose(model.logits(tokens[1:, :5]), full[1:, :5], atol=1e-6)
    for wrong in (np.zeros((B + 1, 2), int), np.zeros((1, T + 1), int), np.zeros((1, 1, 1), int), []):
        with pytest.raises(InvalidArgument):
            model.logits(wrong)


def test_generate_slides_over_a_full_context(model):
    """NUM-19: more tokens than the context holds, against the window written out."""
    prompt = list(batch()[0][0][:3])
    drawn = model.generate(prompt, 40, temperature=0)
    assert len(drawn) == 40
    window, expected = [int(t) for t in prompt], []
    for _ in range(40):
        if len(window) > T:
            window = window[-(T // 2) :]
        expected.append(int(model.logits(window)[-1].argmax()))
        window.append(expected[-1])
    assert drawn == expected


def test_generate_from_a_long_prompt_and_with_one_position(model):
    long = batch(1, (1, 50))[0][0]
    assert model.generate(long, 5, temperature=0) == model.generate(long[-T:], 5, temperature=0)
    with make(seq_len=1) as narrow:
        assert len(narrow.generate([1, 2, 3], 10, seed=1)) == 10


def test_generate_options(model):
    first = model.generate([1], 30, seed=5)
    assert first == model.generate([1], 30, seed=5) != model.generate([1], 30, seed=6)
    assert set(first) <= set(range(CONFIG.vocab))
    heard = []
    assert model.generate([1], 30, seed=5, stop=first[9], on_token=heard.append) == heard
    assert heard == first[: first.index(first[9])]
    assert model.generate([1], 4, top_k=1, seed=1) == model.generate([1], 4, temperature=0)
    assert model.generate([1], 0) == []
    stream = model.stream([1], 30, seed=5)
    assert [next(stream) for _ in range(3)] == first[:3]
    model.step(*batch()).result()
    with pytest.raises(StateError):
        next(stream)


@pytest.mark.parametrize(
    "arguments, options",
    [(([], 3), {}), (([61], 3), {}), (([[1]], 3), {}), ((["a"], 3), {}), (([1], -1), {}), (([1], 1.5), {}),
     (([1], 3), {"temperature": -1}), (([1], 3), {"top_p": 0}), (([1], 3), {"top_k": -2}),
     (([1], 3), {"seed": -1}), (([1], 3), {"temperature": "hot"}), (([1], 3), {"temperature": float("nan")})],
)  # fmt: skip
def test_bad_generation(model, arguments, options):
    with pytest.raises(InvalidArgument):
        model.generate(*arguments, **options)


def test_nan_weights_are_an_error_when_sampling(model):
    model.params["lnfb"] = np.full(32, np.nan)
    with pytest.raises(InvalidArgument):
        model.generate([1], 1)


# -- lifetimes (MEM-05) and signals (CLI-10)


def test_close_is_final_and_idempotent():
    model = make()
    handle = model.step(*batch())
    model.step(*batch())
    loss = handle.loss
    model.close()
    model.close()
    assert model.closed and "closed" in repr(model) and handle.loss == loss
    for call in (lambda: model.step(*batch()), lambda: model.params["wte"], model.synchronize, model.acquire_slot,
                 lambda: model.generate([1], 1), lambda: model.rng, lambda: model.save("never.bin")):  # fmt: skip
        with pytest.raises(StateError, match="closed"):
            call()
    assert not os.path.exists("never.bin")


VIEW = """
import gc
from pyllmc import GPT2, GPT2Config
# batches large enough to be given back to the system, where a stale view would be a segmentation fault
config = GPT2Config(layers=1, heads=1, channels=4, vocab=9, context=16)
model = GPT2.from_config(config, batch=8192, seq_len=16, device="cpu")
slot = model.acquire_slot()
slot.inputs[:] = 7
view = slot.inputs[1:]
model.close()
del model, slot
gc.collect()
assert view.sum() == 7 * view.size
"""


def test_views_outlive_a_closed_model():
    done = run_python(VIEW)
    assert (done.returncode, done.stderr) == (0, "")


def test_close_waits_for_another_threads_call():
    model = make()
    held = [model.acquire_slot() for _ in range(model.options.slots)]
    ended = []

    def wait_for_ever():
        try:
            model.acquire_slot()
        except StateError as error:
            ended.append(str(error))

    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    time.sleep(0.05)
    model.close()
    thread.join(5)
    assert ended and "closed" in ended[0]
    del held


class Struck(list):
    """Ctrl-C comes as soon as an item is in it."""

    def append(self, item):
        super().append(item)
        raise KeyboardInterrupt


def test_an_interrupted_call_does_not_keep_the_memory():
    model = make()
    model.handle._busy = Struck()
    with pytest.raises(KeyboardInterrupt):
        model.synchronize()
    model.close()
    assert model.handle._model is None


def test_interrupt_reaches_a_wait():
    """Ctrl-C in a wait that never ends; another thread goes on meanwhile, and the model is usable after."""
    with make() as model:
        held = [model.acquire_slot() for _ in range(model.options.slots)]
        counted = [0]
        stop = threading.Event()

        def count():
            while not stop.wait(0.002):
                counted[0] += 1

        threading.Thread(target=count).start()
        handler = signal.getsignal(signal.SIGINT)
        sent = []

        def interrupt():
            sent.append(time.monotonic())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        threading.Timer(0.3, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            model.acquire_slot(timeout=60)
        late = time.monotonic() - sent[0]
        stop.set()
        assert late < 1 and counted[0] > 5 and signal.getsignal(signal.SIGINT) is handler
        for slot in held:
            slot.release()
        assert model.step(*batch()).result().finite


LEFT_OPEN = """
import sys, threading, gc, numpy as np
from pyllmc import GPT2, GPT2Config, StateError
how = sys.argv[1]
config = GPT2Config(layers=1, heads=1, channels=16, vocab=20, context=4)
x = np.ones((1, 4), int)
models = [GPT2.from_config(config, batch=1, seq_len=4, device="cpu") for _ in range(3)]
handles = [model.step(x, x) for model in models for _ in range(3)]
slots = [model.acquire_slot() for model in models]
if how == "exit":
    def wait(model=models[0]):
        try: held = [model.acquire_slot() for _ in range(9)]
        except StateError: pass
    threading.Thread(target=wait, daemon=True).start()
elif how == "orders":
    models[0].close(); del slots[0]; gc.collect()
    del handles; slots[0].submit(); models[1].close(); models[1].close()
    try: slots[0].release()
    except Exception as error: print(type(error).__name__)
    del models; gc.collect()
    del slots; gc.collect()
elif how == "constructor":
    for wrong in ({"batch": -1}, {"seq_len": 99}, {"nonsense": 1}):
        made = None
        try: made = GPT2(config, **{"batch": 1, "seq_len": 4, "device": "cpu", **wrong})
        except (ValueError, TypeError) as error: kept = error
        del made; gc.collect()
    class Broken(GPT2):
        def _param_table(self, c_config): raise RuntimeError("late in the constructor")
    try: Broken(config, batch=1, seq_len=4, device="cpu")
    except RuntimeError: pass
    gc.collect()
elif how == "cycle":
    models[0].me = models[0]; models[1].slot = slots[1]; slots[1].model = models[1]
sys.exit(5)
"""


@pytest.mark.parametrize("how", ["exit", "orders", "constructor", "cycle"])
def test_every_end_is_quiet(how):
    done = run_python(LEFT_OPEN, how)
    assert (done.returncode, done.stderr) == (5, "")

"""A model made with train=0: the bits of one that trains, in the memory of one that doesn't."""

import engine as driver
import numpy as np
import oracle
import pytest
from engine import ADAM_M, ADAM_V, BF16, FP32, GRAD, MASTER, PARAM, Engine, EngineError, ffi, load, tiny_config

from pyllmc import GPT2, GPT2Config, Trainer, evaluate, generate, train_options
from pyllmc.ab.variants import known_names
from pyllmc.checkpoint import write_checkpoint
from pyllmc.errors import InvalidArgument, StateError, Unavailable
from pyllmc.profile import options as profile_options
from pyllmc.shards import write_shard

# (config, B, T). On a GPU a product's algorithm goes by alignment: N*C fills whole 16 bytes, so that layers have the same.
SHAPES = {
    "three layers": (tiny_config(layers=3), 3, 16),
    "one layer, one row": (tiny_config(layers=1), 1, 16),
    "odd": (tiny_config(layers=4, heads=3, channels=33, vocab=129), 2, 12),
    "cuDNN's": (tiny_config(layers=2, heads=2, channels=128, context=128), 2, 128),
}
SWITCHES = [
    {}, {"head_chunks": 4}, {"recompute": 2}, {"gelu_fusion": 0}, {"gelu_fusion": 2}, {"streams": 1, "graph": 0, "prefetch": 3},
]  # fmt: skip
SMALL, B, T = tiny_config(), 2, 8
OWN = 2  # LLMC_ATTENTION_OWN


def precisions(backend):
    return (FP32,) if backend == "cpu" else (FP32, BF16)


def both(config, B, T, backend, **options):
    """The same weights in a model that trains and one that doesn't. Where cuDNN has no backward for the one, it attends
    for neither."""
    params = oracle.random_params(config)
    training = Engine(config, B, T, backend, params, **options)
    if "own kernels are used" in ffi.string(training.lib.llmc_model_notes(training.handle)).decode():
        options["attention"] = OWN
    return training, Engine(config, B, T, backend, params, train=0, **options)


def everything(engine, config, B, T):
    """What a model says, in an order in which each answer follows all the others."""
    tokens = oracle.random_batch(config, B, T, 9)[0]
    for seed in range(2):
        inputs, targets = oracle.random_batch(config, B, T, seed)
        mean, losses = engine.eval(inputs, targets)
        yield f"mean {seed}", np.float32(mean)
        yield f"losses {seed}", losses
        for rows, n in {(B, 1), (1, T), (B, max(1, T // 2))}:
            yield f"prefill {rows} {n} {seed}", engine.prefill(tokens[:rows, :n])
            for position in range(n, min(T, n + 3)):
                yield f"decode {rows} {position} {seed}", engine.decode(tokens[:rows, position])
        yield f"logits {seed}", engine.logits(inputs)
        yield f"losses again {seed}", engine.eval(inputs, targets)[1]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bits_of_a_model_that_trains(backend, shape, switches):
    config, B, T = SHAPES[shape]
    for precision in precisions(backend):
        training, other = both(config, B, T, backend, precision=precision, **switches)
        with training, other:
            expected, found = (dict(everything(engine, config, B, T)) for engine in (training, other))
        assert expected["losses 0"].std() > 0 and np.isfinite(expected["logits 1"]).all()
        wrong = [name for name, value in expected.items() if value.tobytes() != found[name].tobytes()]
        assert not wrong, (precision, wrong)


def test_the_text_of_a_model_that_trains(backend):
    """Past the context, where the window slides and is read again."""
    drawn = []
    for train in (1, 0):
        exact = {"precision": "fp32", "deterministic": 1, "train": train}
        with GPT2.from_config(SMALL, batch=B, seq_len=T, device=backend, **exact) as model:
            drawn.append([model.generate([1, 2, 3], 40, seed=seed) for seed in range(3)])
    assert drawn[0] == drawn[1] and len(set(map(tuple, drawn[0]))) == 3


# -- memory


def plan(backend, config, B, T, **options):
    lib, found = load(backend), ffi.new("llmc_memory *")
    given = {"precision": FP32, "batch": B, "seq_len": T, **options}
    driver.check(lib, lib.llmc_memory_plan(driver.make_config(config), driver.make_options(lib, **given), found))
    return found


@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_the_plan_holds_one_layer_and_all_keys_and_values(backend, recompute):
    """A shape whose buffers are multiples of 256 bytes, to which each is rounded up."""
    config, B, T = tiny_config(layers=5, channels=64), 4, 16
    N, C, L, NH = B * T, 64, 5, 2
    for precision, width in ((FP32, 4), (BF16, 2))[: len(precisions(backend))]:
        whole = plan(backend, config, B, T, precision=precision)
        small = plan(backend, config, B, T, precision=precision, recompute=recompute, train=0)
        assert (small.gradients, small.optimizer) == (0, 0) < (whole.gradients, whole.optimizer)
        assert (small.parameters, small.logits) == (whole.parameters, whole.logits)
        # residual twice, ln1, ln2, att, lnf; fc, gelu; q, k, v of all layers; means and deviations, lse, losses in fp32
        assert small.activations == width * N * C * (6 + 2 * 4 + 3 * L) + 4 * N * (6 + NH + 1)
        assert whole.activations == width * N * C * (2 + 16 * L) + 4 * N * ((4 + NH) * L + 3)
        assert whole.workspace - small.workspace >= width * N * 6 * C
        assert small.batches == whole.batches if backend == "cpu" else small.batches < whole.batches
        parts = ("parameters", "activations", "logits", "workspace", "batches")
        assert small.total == sum(getattr(small, part) for part in parts)
        assert list(small.total_by_recompute) == [small.total] * 3


def test_too_large_a_model_is_not_advised_to_recompute(backend):
    config = tiny_config(layers=48, channels=1600, heads=25, vocab=50257, context=1024)
    with pytest.raises(EngineError, match="needed.*to fit: options.head_chunks > 1, or a batch below 16384") as caught:
        Engine(config, 1 << 14, 1024, backend, train=0)
    assert caught.value.status == "NO_MEMORY"


# -- what such a model has not


def refused(engine, missing, verb, *args):
    with pytest.raises(EngineError) as caught:
        engine.call(verb, *args)
    assert caught.value.status == "UNAVAILABLE"
    assert caught.value.message == f"llmc_{verb}: this model was made with options.train = 0: it has no {missing}"


def test_what_needs_training_is_refused_in_one_sentence(backend):
    marked = b"\x5a" * ffi.sizeof("llmc_guard")
    memory, guard = ffi.new("float[]", [7] * 32), ffi.new("llmc_guard *")
    ffi.buffer(guard)[:] = marked
    ticket, hyper = ffi.new("int64_t *", -3), ffi.new("llmc_hyper *")
    load(backend).llmc_hyper_default(hyper)
    batch = oracle.random_batch(SMALL, B, T)
    training, other = both(SMALL, B, T, backend)
    with training, other:
        expected = training.eval(*batch)[1]
        slot = other.submit(*batch)
        refused(other, "gradients", "micro_step", slot, 0, 1)
        refused(other, "gradients or moments", "update", hyper, ticket)
        for kind, missing in ((GRAD, "gradients"), (ADAM_M, "moments"), (ADAM_V, "moments"), (MASTER, "master weights")):
            for verb in ("tensor_read", "tensor_write"):
                refused(other, missing, verb, kind, other.names.index("lnfb"), FP32, memory, 4 * 32)
        refused(other, "guard", "guard_get", guard)
        refused(other, "guard", "guard_set", guard)
        refused(other, "training state to take a snapshot of", "snapshot_take")
        refused(other, "steps to record", "timeline_arm")
        for verb, args in (("result", (0, 0, ffi.new("llmc_step_result *"))), ("snapshot_guard", (guard,)),
                           ("snapshot_read", (PARAM, other.names.index("lnfb"), FP32, memory, 4 * 32)),
                           ("timeline_read", (ffi.NULL, 0, ffi.new("int32_t *")))):  # fmt: skip
            with pytest.raises(EngineError) as caught:
                other.call(verb, *args)
            assert caught.value.status == "STATE", verb
        assert bytes(ffi.buffer(guard)) == marked and list(memory) == [7] * 32 and ticket[0] == -3
        # nothing happened: the slot is still submitted, and the model says what it said
        losses, mean = np.empty((B, T), np.float32), ffi.new("float *")
        other.call("eval", slot, ffi.from_buffer("float[]", losses), mean)
        assert np.array_equal(losses, expected)


def test_in_python_they_are_unavailable(backend):
    with GPT2.from_config(SMALL, batch=B, seq_len=T, device=backend, train=False, precision="fp32") as model:
        assert model.options.train == 0 and model.memory.optimizer == 0
        inputs, targets = oracle.random_batch(SMALL, B, T)
        for _ in range(model.options.slots + 1):  # each attempt gives its slot back
            with pytest.raises(Unavailable, match=r"options.train = 0: it has no gradients$"):
                model.step(inputs, targets)
        for attempt in (model.update, model.snapshot, model.arm_timeline, lambda: model.guard, lambda: model.m["wte"]):
            with pytest.raises(Unavailable, match=r"options.train = 0: it has no \w+"):
                attempt()
        assert model.updates == 0 and np.isfinite(model.eval_loss(inputs, targets))


def test_a_trainer_asks_for_a_model_that_trains(tmp_path):
    with GPT2.from_config(SMALL, batch=B, seq_len=T, device="cpu", train=0) as model:
        loader = type("Loader", (), {"B": B, "T": T, "num_batches": 3})
        with pytest.raises(InvalidArgument, match=r"^a model made with train=0 has no gradients: "):
            Trainer(model, loader, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- weights in and out, and the end


def test_weights_go_in_and_out(backend, tmp_path):
    params = oracle.random_params(SMALL)
    write_checkpoint(tmp_path / "in.bin", SMALL, params, "fp32")
    given = {"batch": B, "seq_len": T, "device": backend, "precision": "fp32", "tf32": 0, "train": 0}
    with GPT2.from_checkpoint(tmp_path / "in.bin", **given) as model:
        assert all(np.array_equal(model.params[name], value) for name, value in params.items())
        model.save(tmp_path / "out.bin")
        model.save_pretrained(tmp_path / "hf")
    assert (tmp_path / "out.bin").read_bytes() == (tmp_path / "in.bin").read_bytes()
    inputs, targets = oracle.random_batch(SMALL, B, T)
    with GPT2.from_pretrained(tmp_path / "hf", **given) as model:
        assert model.options.train == 0
        before = model.eval_loss(inputs, targets)
        assert before == pytest.approx(float(oracle.loss(oracle.widened(params), inputs, targets, SMALL)), rel=1e-4)
        changed = {**params, "lnfw": 2 * params["lnfw"]}
        model.generate([1], 2)
        model.params["lnfw"] = changed["lnfw"]
        assert model.eval_loss(inputs, targets) != before
        expected = float(oracle.loss(oracle.widened(changed), inputs, targets, SMALL))
        assert model.eval_loss(inputs, targets) == pytest.approx(expected, rel=1e-4)


def test_changed_weights_end_what_was_kept(backend):
    with Engine(SMALL, B, T, backend, oracle.random_params(SMALL), train=0) as engine:
        engine.prefill([[1, 2]])
        engine.decode([3])
        engine.write_one("lnfb", np.zeros(SMALL.channels))
        with pytest.raises(EngineError, match="llmc_prefill first") as caught:
            engine.decode([4])
        assert caught.value.status == "STATE"


def test_closing(backend):
    """With a batch under way, with a text half drawn, and twice."""
    model = GPT2.from_config(SMALL, batch=B, seq_len=T, device=backend, train=0)
    text = model.stream([1], 5)
    next(text)
    slot = model.acquire_slot()
    slot.inputs[:] = slot.targets[:] = 0
    slot.submit()
    model.close()
    model.close()
    assert model.closed
    with pytest.raises(StateError):
        next(text)


# -- who asks for it


def test_generate_and_evaluate_ask_for_it(tmp_path, monkeypatch, capsys):
    config, made, real = GPT2Config(layers=1, heads=1, channels=8, vocab=257, context=64), [], GPT2.__init__

    def noted(self, config, **arguments):
        real(self, config, **arguments)
        made.append(self.options)

    write_checkpoint(tmp_path / "m.bin", config, oracle.random_params(config), "fp32")
    write_shard(tmp_path / "v.bin", np.arange(65).astype(np.uint16))
    monkeypatch.setattr(GPT2, "__init__", noted)
    assert generate.main([str(tmp_path / "m.bin"), "ab", "-n", "3", "--device", "cpu"]) == 0
    assert evaluate.main([str(tmp_path / "m.bin"), "--data", str(tmp_path / "v.bin"), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert [options.train for options in made] == [0, 0]
    assert made[0].head_chunks == made[0].seq_len  # a drawn token has logits of one row of the text


def test_trainers_are_not_offered_it():
    for fields in (train_options.ENGINE_FIELDS, profile_options.ENGINE_FIELDS, known_names()):
        assert "recompute" in fields and "train" not in fields

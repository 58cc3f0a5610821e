"""The engine against the float64 model of oracle.py, at friendly and awkward shapes, and against itself."""

import numpy as np
import oracle
import pytest
from engine import ADAM_M, ADAM_V, GRAD, Engine, EngineError, ffi, load, tiny_config
from tolerance import limit

# name: (changes to the tiny model, B, T)
SHAPES = {
    "plain": ({}, 2, 16),
    "smallest": ({"layers": 1, "heads": 1, "channels": 1, "vocab": 1, "context": 1}, 1, 1),
    "V=5": ({"vocab": 5}, 2, 16),
    "V=2, far below one block": ({"vocab": 2, "channels": 16}, 1, 3),
    "V=Vp=128": ({"vocab": 128}, 2, 16),
    "V=129, just over a padding step": ({"vocab": 129}, 2, 16),
    "V=1000": ({"vocab": 1000, "layers": 1}, 2, 16),
    "T=1": ({}, 3, 1),
    "T=7, B=1": ({}, 1, 7),
    "T=33, over the warp": ({"context": 40}, 2, 33),
    "T=130": ({"context": 130, "channels": 16}, 1, 130),
    "C=48, NH=3, head 16": ({"channels": 48, "heads": 3}, 2, 16),
    "one layer": ({"layers": 1}, 2, 16),
    "five layers": ({"layers": 5, "channels": 16}, 2, 16),
    "one head": ({"heads": 1}, 2, 16),
    "head 1": ({"heads": 8, "channels": 8}, 2, 16),
    "head 64": ({"heads": 2, "channels": 128, "layers": 1}, 2, 16),
    "head 80": ({"heads": 1, "channels": 80}, 2, 16),
    "C=21, odd rows": ({"heads": 3, "channels": 21}, 2, 16),
    "C=160": ({"heads": 2, "channels": 160, "layers": 1}, 3, 5),
}


@pytest.fixture(params=SHAPES, ids=str)
def case(request):
    changes, B, T = SHAPES[request.param]
    config = tiny_config(**changes)
    return config, oracle.random_params(config), oracle.random_batch(config, B, T)


def small():
    config = tiny_config(channels=16)
    return config, oracle.random_params(config)


def apart(found, expected):
    return {name: oracle.distance(found[name], expected[name]) for name in expected}


def equal_bits(a, b):
    return all(np.array_equal(a[name].view(np.uint32), b[name].view(np.uint32)) for name in b)


# -- one step's mathematics


def test_forward_and_gradients(case, backend):
    config, params, (inputs, targets) = case
    with Engine(config, *inputs.shape, backend, params) as engine:
        logits = engine.logits(inputs)
        mean, losses = engine.eval(inputs, targets)
        loss, grads = engine.loss_and_grads(inputs, targets)
    wide = oracle.widened(params)
    expected_losses = oracle.losses(wide, inputs, targets, config)
    expected, expected_grads = oracle.loss_and_grads(params, inputs, targets, config)
    assert oracle.distance(logits, oracle.logits(wide, inputs, config)) <= limit("logits", backend)
    # a loss near 0 is a difference of two logits: it inherits their absolute error
    bound = {"rtol": limit("loss", backend), "atol": limit("logits", backend)}
    np.testing.assert_allclose(losses, expected_losses, **bound)
    np.testing.assert_allclose([mean, loss], expected, **bound)
    if config.channels == 1:  # LayerNorm of one channel is its bias: every other gradient is rounding
        expected_grads = {"lnfb": expected_grads["lnfb"]}
    distances = apart(grads, expected_grads)
    assert max(distances.values()) <= limit("grads", backend), distances
    # what the batch didn't touch has no gradient at all
    assert not grads["wpe"][inputs.shape[1] :].any()
    assert not grads["wte"][config.vocab :].any()


def test_repeated_token_and_equal_targets(backend):
    """Every position adds to the same row of the token table."""
    config, params = small()
    inputs = targets = np.full((2, 16), 3, np.int32)
    with Engine(config, 2, 16, backend, params) as engine:
        loss, grads = engine.loss_and_grads(inputs, targets)
    expected, expected_grads = oracle.loss_and_grads(params, inputs, targets, config)
    assert loss == pytest.approx(expected, rel=limit("loss", backend))
    assert max(apart(grads, expected_grads).values()) <= limit("grads", backend)


def test_large_logits(backend):
    """A softmax without its maximum taken off would overflow here."""
    config, params = small()
    params["lnfw"] *= 300
    inputs, targets = oracle.random_batch(config, 2, 16)
    with Engine(config, 2, 16, backend, params) as engine:
        loss, grads = engine.loss_and_grads(inputs, targets)
    expected, expected_grads = oracle.loss_and_grads(params, inputs, targets, config)
    assert expected > 90  # exp(90) is past fp32
    assert loss == pytest.approx(expected, rel=1e-4)
    assert oracle.distance(grads["lnfb"], expected_grads["lnfb"]) <= 1e-3


def test_accumulation_is_a_mean(backend):
    """The same four rows as one, two and four micro-steps: loss, norm, gradients and weights agree."""
    config, params = small()
    inputs, targets = oracle.random_batch(config, 4, 16)
    expected, expected_grads = oracle.loss_and_grads(params, inputs, targets, config)
    truth = oracle.AdamW(params, eps=1e-3, decay=0.1, clip=0.5)
    expected_norm = truth.update(expected_grads, 1e-2)
    for B in (4, 2, 1):
        with Engine(config, B, 16, backend, params) as engine:
            n = 4 // B
            for i in range(n):
                rows = slice(i * B, (i + 1) * B)
                engine.micro_step(inputs[rows], targets[rows], i, n)
            grads = engine.read(GRAD)
            ticket = engine.update(learning_rate=1e-2, eps=1e-3, weight_decay=0.1, grad_clip=0.5)
            result, weights = engine.result(ticket), engine.read()
        assert result.loss == pytest.approx(expected, rel=limit("loss", backend)), B
        assert result.grad_norm == pytest.approx(expected_norm, rel=limit("norm", backend)), B
        assert result.clip_scale == pytest.approx(0.5 / expected_norm, rel=limit("norm", backend)), B
        assert max(apart(grads, expected_grads).values()) <= limit("grads", backend), B
        assert max(apart(weights, truth.params).values()) <= limit("weights", backend), B


def test_first_micro_step_forgets_the_last_step(backend):
    """Gradients are assigned, not added, at micro-step 0: also rows that only the earlier batch touched."""
    config, params = small()
    first, second = (oracle.random_batch(config, 2, 8, seed) for seed in (1, 2))
    with Engine(config, 2, 8, backend, params) as engine:
        engine.step([first, first])
        loss, grads = engine.loss_and_grads(*second)
    with Engine(config, 2, 8, backend, params) as engine:
        alone_loss, alone = engine.loss_and_grads(*second)
    assert loss == alone_loss and equal_bits(grads, alone)


# -- the update


def test_three_steps_with_clip_and_decay(backend):
    config, params = small()
    truth = oracle.AdamW(params, eps=1e-3, decay=0.1, clip=0.5)
    with Engine(config, 2, 16, backend, params) as engine:
        for step in range(3):
            batch = oracle.random_batch(config, 2, 16, seed=step)
            result = engine.step([batch], step=step + 1, learning_rate=1e-2, eps=1e-3, weight_decay=0.1, grad_clip=0.5)
            expected, grads = oracle.loss_and_grads(truth.params, *batch, config)
            assert result.grad_norm == pytest.approx(truth.update(grads, 1e-2), rel=limit("norm", backend))
            assert result.loss == pytest.approx(expected, rel=limit("loss", backend) * 5)
            assert result.skipped == 0
        weights = engine.read()
    assert max(apart(weights, truth.params).values()) <= limit("weights", backend), apart(weights, truth.params)
    moved = apart(params, truth.params)
    assert min(moved.values()) > 10 * limit("weights", backend), moved  # else the comparison proves nothing


def test_update_formula_on_given_gradients(backend):
    """With its own gradients put in, every element of weights and moments follows AdamW, tiny eps included."""
    config, params = small()
    random = np.random.default_rng(5)
    truth = oracle.AdamW(params, beta1=0.8, beta2=0.9, decay=0.2)
    with Engine(config, 1, 4, backend, params) as engine:
        for step in range(3):
            # from 1e-7 to 1e3: eps, bias correction and the second moment all matter somewhere
            sizes = {name: 10.0 ** random.uniform(-7, 3, p.shape) for name, p in params.items()}
            grads = {name: (s * random.standard_normal(s.shape)).astype(np.float32) for name, s in sizes.items()}
            grads["wte"][config.vocab :] = 0
            engine.micro_step(*oracle.random_batch(config, 1, 4))
            engine.write(grads, GRAD)
            result = engine.result(
                engine.update(learning_rate=1e-2, beta1=0.8, beta2=0.9, weight_decay=0.2, step=step + 1)
            )
            assert result.grad_norm == pytest.approx(truth.update(grads, 1e-2), rel=1e-5)
            assert result.clip_scale == 1
        for kind, expected in ((0, truth.params), (ADAM_M, truth.m), (ADAM_V, truth.v)):
            for name, value in engine.read(kind).items():
                # a moment that cancels keeps the rounding of its largest term
                atol = limit("update", backend) * (1 if kind == 0 else np.abs(expected[name]).max() * 1e-3)
                np.testing.assert_allclose(
                    value, expected[name], rtol=limit("update", backend), atol=atol, err_msg=name
                )


def test_decay_reaches_matrices_only_and_once(backend):
    """Zero gradients, lr 0.1, decay 0.1: matrices shrink to 0.99, the shared embedding too, vectors stay."""
    config, params = small()
    zeros = {name: np.zeros_like(p) for name, p in params.items()}
    with Engine(config, 1, 4, backend, params) as engine:
        engine.micro_step(*oracle.random_batch(config, 1, 4))
        engine.write(zeros, GRAD)
        result = engine.result(engine.update(learning_rate=0.1, weight_decay=0.1, grad_clip=1.0))
        weights = engine.read()
    assert result.grad_norm == 0 and result.clip_scale == 1 and result.skipped == 0
    for name, value in weights.items():
        if name in oracle.MATRICES:
            np.testing.assert_allclose(value, params[name] * 0.99, rtol=2e-7, atol=0, err_msg=name)
        else:
            assert np.array_equal(value, params[name]), name


def test_parameter_table_says_what_decays(backend):
    config, lib = tiny_config(), load(backend)
    info, shape = ffi.new("llmc_param *"), ffi.new("llmc_config *")
    shape[0] = [config.context, config.vocab, config.layers, config.heads, config.channels]
    for index, (name, dims) in enumerate(config.shapes().items()):
        assert lib.llmc_param_info(shape, index, info) == 0
        assert ffi.string(info.name).decode() == name
        assert tuple(info.shape)[: info.dims] == dims and info.count == np.prod(dims)
        assert bool(info.decayed) == (name in oracle.MATRICES)
        residual = name in ("attprojw", "fcprojw")
        std = 0.02 / np.sqrt(2 * config.layers) if residual else 0.02 if name in oracle.MATRICES else 0
        assert info.init_std == pytest.approx(std)
        assert info.init_value == (name in ("ln1w", "ln2w", "lnfw"))


# -- switches that must not change the result


@pytest.mark.parametrize(
    "switch",
    [
        *({"recompute": n} for n in (1, 2)),
        *({"head_chunks": n} for n in (2, 3, 32)),
        *({"gelu_fusion": n} for n in (1, 2)),
        *({"recompute": 2, "gelu_fusion": n, "head_chunks": 5} for n in (0, 2)),
    ],
    ids=lambda switch: ",".join(f"{k}={v}" for k, v in switch.items()),
)
def test_switch_keeps_the_result(switch, backend):
    config, params = small()
    batches = [oracle.random_batch(config, 2, 16, seed) for seed in range(4)]
    runs = []
    for options in ({}, switch):
        with Engine(config, 2, 16, backend, params, **options) as engine:
            losses = [engine.step(batches[i : i + 2], step=i + 1, learning_rate=1e-3, eps=1e-3).loss for i in range(3)]
            runs.append((losses, engine.read(GRAD), engine.logits(batches[0][0])))
    (losses, grads, logits), (other_losses, other_grads, other_logits) = runs
    assert other_losses == pytest.approx(losses, rel=limit("same", backend))
    assert oracle.distance(other_logits, logits) <= limit("same", backend)
    distances = apart(other_grads, grads)
    assert max(distances.values()) <= 5 * limit("same", backend), distances


def test_runs_repeat_bit_for_bit(backend):
    config, params = small()
    runs = []
    for _ in range(3):
        with Engine(config, 2, 16, backend, params) as engine:
            losses = [
                engine.step([oracle.random_batch(config, 2, 16, step)], step=step + 1, learning_rate=1e-2).loss
                for step in range(10)
            ]
            runs.append((losses, engine.read()))
    for losses, weights in runs[1:]:
        assert losses == runs[0][0] and equal_bits(weights, runs[0][1])
    assert len(set(losses)) == 10


def test_two_models_do_not_share_anything(backend):
    """Steps of two models interleaved give what each gives alone."""
    config, params = small()
    other = oracle.random_params(config, seed=9)
    batch = oracle.random_batch(config, 2, 16)

    def steps(engine):
        for step in range(3):
            yield engine.step([batch], step=step + 1, learning_rate=1e-2).loss

    alone = []
    for weights in (params, other):
        with Engine(config, 2, 16, backend, weights) as engine:
            alone.append(list(steps(engine)))
    with Engine(config, 2, 16, backend, params) as one, Engine(config, 2, 16, backend, other) as two:
        together = list(zip(steps(one), steps(two), strict=True))
    assert [list(column) for column in zip(*together, strict=True)] == alone
    assert alone[0] != alone[1]


def test_evaluation_leaves_training_alone(backend):
    """Evaluation, logits and generation between steps and between micro-steps: same losses, same weights."""
    config, params = small()
    runs = []
    for disturbed in (False, True):
        with Engine(config, 2, 8, backend, params) as engine:
            losses = []
            for step in range(3):
                batches = [oracle.random_batch(config, 2, 8, 10 * step + i) for i in range(2)]
                for i, batch in enumerate(batches):
                    engine.micro_step(*batch, i, 2)
                    if disturbed:
                        other = oracle.random_batch(config, 2, 8, 777)
                        engine.eval(*other)
                        engine.logits(other[0])
                        engine.prefill(other[0][:1, :3])
                        engine.decode(other[0][:1, 3])
                losses.append(engine.result(engine.update(learning_rate=1e-2, step=step + 1)).loss)
            runs.append((losses, engine.read()))
    assert runs[0][0] == runs[1][0] and equal_bits(runs[0][1], runs[1][1])


# -- padding rows


def test_padding_rows_do_not_exist(backend):
    """Whatever is written to them: no probability, no gradient, zero after ten steps."""
    config, params = small()
    batch = oracle.random_batch(config, 2, 16)
    spoiled = dict(params, wte=params["wte"].copy())
    spoiled["wte"][config.vocab :] = 100
    runs = []
    for weights in (params, spoiled):
        with Engine(config, 2, 16, backend, weights) as engine:
            assert not engine.read_one("wte")[config.vocab :].any()
            logits, prefill = engine.logits(batch[0]), engine.prefill(batch[0][:, :5])
            losses = [
                engine.step([batch], step=step + 1, learning_rate=1e-2, weight_decay=0.1).loss for step in range(10)
            ]
            assert not engine.read_one("wte", GRAD)[config.vocab :].any()
            for kind in (0, ADAM_M, ADAM_V):
                assert not engine.read_one("wte", kind)[config.vocab :].any(), kind
            runs.append((losses, logits, prefill))
    assert runs[0][0] == runs[1][0]
    assert np.array_equal(runs[0][1], runs[1][1]) and np.array_equal(runs[0][2], runs[1][2])


# -- steps that must not count


def guard_of(engine):
    guard = ffi.new("llmc_guard *")
    engine.call("guard_get", guard)
    return guard


def test_nonfinite_step_is_skipped_and_forgotten(backend):
    """A NaN loss, a NaN norm, then good steps, then spikes: nothing bad is applied, the guard recovers."""
    config = tiny_config(layers=1, channels=8, vocab=11)
    params = oracle.random_params(config)
    hyper = {"learning_rate": 1e-4, "max_loss_z": 6.0, "max_norm_z": 6.0}
    random = np.random.default_rng(0)
    results, step = [], 0

    def batch():
        ids = random.integers(0, config.vocab, (2, 1, 4), dtype=np.int32)
        return ids[0], ids[1]

    with Engine(config, 1, 4, backend, params) as engine:

        def state():
            return [engine.read(kind) for kind in (0, ADAM_M, ADAM_V)]

        def good():
            nonlocal step
            step += 1
            results.append(engine.step([batch()], step=step, **hyper))
            assert results[-1].skipped == 0
            return results[-1]

        def bad(poison):
            """A step whose backward pass, or gradient, is spoiled by poison(); nothing may change."""
            before = state()
            poison()
            result = engine.result(engine.update(step=step + 1, **hyper))
            assert all(equal_bits(*pair) for pair in zip(state(), before, strict=True))
            return result

        def weights_times(factor):
            kept = engine.read_one("lnfw")
            engine.write_one("lnfw", kept * np.float32(factor))
            engine.micro_step(*batch())
            engine.write_one("lnfw", kept)

        def grads_times(factor):
            engine.micro_step(*batch())
            engine.write_one("fcw", engine.read_one("fcw", GRAD) * np.float32(factor), GRAD)

        for _ in range(10):
            good()
        result = bad(lambda: weights_times(np.nan))
        assert result.skipped == 1 and np.isnan(result.loss) and np.isnan(result.loss_z)
        result = bad(lambda: grads_times(np.nan))
        assert result.skipped == 1 and np.isfinite(result.loss) and np.isnan(result.grad_norm)
        result = bad(lambda: grads_times(np.inf))
        assert result.skipped == 1 and not np.isfinite(result.grad_norm)
        for _ in range(390):
            good()
        assert all(np.isnan(r.loss_z) and np.isnan(r.norm_z) for r in results[:120])
        # A skipped step's finite loss has entered the ring, its NaN has not: the last 128 are all good ones.
        for values, scores in (
            ([r.loss for r in results], [r.loss_z for r in results]),
            ([r.grad_norm for r in results], [r.norm_z for r in results]),
        ):
            window = np.float64(values[-128:])
            assert scores[-1] == pytest.approx((window[-1] - window.mean()) / window.std(), rel=1e-3, abs=1e-4)
            assert np.abs(scores[-200:]).max() < 6 and np.isfinite(scores[-200:]).all()
        result = bad(lambda: weights_times(1e6))
        assert result.skipped == 2 and result.loss > 1e4 and result.loss_z > 6
        for _ in range(128):  # the spike's large norm has to leave the window first
            good()
        result = bad(lambda: grads_times(1e6))
        assert result.skipped == 3 and result.norm_z > 6
        good()
        guard = guard_of(engine)
        assert guard.loss_seen == len(results) + 2 + 2  # all but the one NaN
        assert guard.norm_seen == len(results) + 2


def test_guard_memory_moves_to_another_model(backend):
    """A resumed run judges a step as the first run would have."""
    config = tiny_config(layers=1, channels=8, vocab=11)
    params = oracle.random_params(config)
    batches = [oracle.random_batch(config, 1, 4, seed) for seed in range(140)]
    with Engine(config, 1, 4, backend, params) as first, Engine(config, 1, 4, backend, params) as second:
        for batch in batches[:-1]:
            first.step([batch])
        second.call("guard_set", guard_of(first))
        results = [engine.step(batches[-1:]) for engine in (first, second)]
        assert results[0].loss_z == results[1].loss_z and np.isfinite(results[0].loss_z)
        assert results[0].norm_z == results[1].norm_z
        assert bytes(ffi.buffer(guard_of(first))) == bytes(ffi.buffer(guard_of(second)))


def test_resume_is_exact(backend):
    """Weights, moments and generator read out and put into a new model: the same bits from there on."""
    config, params = small()
    hyper = {"learning_rate": 1e-2, "weight_decay": 0.1, "grad_clip": 1.0}

    def run(engine, steps):
        return [engine.step([oracle.random_batch(config, 2, 16, s)], step=s + 1, **hyper).loss for s in steps]

    with Engine(config, 2, 16, backend, params) as engine:
        run(engine, range(5))
        kept = [engine.read(kind) for kind in (0, ADAM_M, ADAM_V)]
        now, before = ffi.new("uint64_t[2]"), ffi.new("uint64_t *")
        engine.call("rng_get", now, before)
        losses, weights = run(engine, range(5, 10)), engine.read()
    with Engine(config, 2, 16, backend) as engine:
        for kind, values in zip((0, ADAM_M, ADAM_V), kept, strict=True):
            engine.write(values, kind)
        engine.call("rng_set", now[0])
        assert run(engine, range(5, 10)) == losses
        assert equal_bits(engine.read(), weights)
    assert not equal_bits(weights, kept[0])


# -- generation


@pytest.mark.parametrize("rows", [1, 2])
def test_prefill_and_decode_see_what_the_whole_pass_sees(rows, backend):
    config, params = small()
    tokens, _ = oracle.random_batch(config, 2, 16)
    with Engine(config, 2, 16, backend, params) as engine:
        full = engine.logits(tokens)[:rows]
        tokens = tokens[:rows]
        for n in range(1, 17):
            assert oracle.distance(engine.prefill(tokens[:, :n]), full[:, n - 1]) <= limit("logits", backend), n
        for n in (1, 5):
            engine.prefill(tokens[:, :n])
            for position in range(n, 16):
                found = engine.decode(tokens[:, position])
                assert oracle.distance(found, full[:, position]) <= limit("logits", backend), (n, position)
            with pytest.raises(EngineError) as error:
                engine.decode(tokens[:, 0])
            assert error.value.status == "STATE"


def test_what_prefill_kept_is_gone_after_training(backend):
    config, params = small()
    batch = oracle.random_batch(config, 2, 16)
    with Engine(config, 2, 16, backend, params) as engine:
        uses = {"nothing": lambda: None, "step": lambda: engine.step([batch]), "eval": lambda: engine.eval(*batch)}
        for name, use in uses.items():
            if name != "nothing":
                engine.prefill(batch[0][:, :3])
                engine.decode(batch[0][:, 3])
            use()
            with pytest.raises(EngineError) as error:
                engine.decode(batch[0][:, 4])
            assert error.value.status == "STATE", name


def sample(logits, draws=1, state=1, temperature=1.0, top_k=0, top_p=1.0):
    """(ids, state after)."""
    lib, out, seed = load("cpu"), ffi.new("int32_t *"), ffi.new("uint64_t *", state)
    how = ffi.new("llmc_sampling *", [temperature, top_k, top_p])
    values = ffi.new("float[]", list(logits))
    ids = []
    for _ in range(draws):
        status = lib.llmc_sample(values, len(logits), how, seed, out)
        if status:
            raise EngineError(status, ffi.string(lib.llmc_last_error()).decode())
        ids.append(out[0])
    return np.array(ids), seed[0]


def test_sample_of_extreme_logits():
    assert set(sample([95, 1, 1, 1], 1000)[0]) == {0}
    assert set(sample([1, 1e30, 1, -1e30], 100)[0]) == {1}
    assert set(sample([-np.inf, -np.inf, 3], 100)[0]) == {2}
    for logits in ([np.nan, 1, 2, 3], [3, 2, 1, np.nan], [-np.inf] * 4):
        with pytest.raises(EngineError) as error:
            sample(logits)
        assert error.value.status == 1


def test_sample_follows_the_distribution():
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    n = 20000

    def shares(**how):
        return np.bincount(sample(logits, n, **how)[0], minlength=4) / n

    # five standard deviations of a share; the seed is fixed, so this never flickers
    np.testing.assert_allclose(shares(), [0.1, 0.2, 0.3, 0.4], atol=5 * 0.5 / n**0.5)
    hot = np.array([0.1, 0.2, 0.3, 0.4]) ** 0.5
    np.testing.assert_allclose(shares(temperature=2.0), hot / hot.sum(), atol=5 * 0.5 / n**0.5)
    np.testing.assert_allclose(shares(top_k=2), [0, 0, 3 / 7, 4 / 7], atol=5 * 0.5 / n**0.5)
    np.testing.assert_allclose(shares(top_p=0.6), [0, 0, 3 / 7, 4 / 7], atol=5 * 0.5 / n**0.5)
    assert (shares(top_k=2) == 0).tolist() == (shares(top_p=0.6) == 0).tolist() == [True, True, False, False]
    for greedy in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.01}):
        assert shares(**greedy).tolist() == [0, 0, 0, 1], greedy


def test_sample_is_a_function_of_its_state():
    logits = np.random.default_rng(0).standard_normal(50)
    ids, state = sample(logits, 40, state=7)
    again, same = sample(logits, 40, state=7)
    assert (ids == again).all() and state == same and len(set(ids)) > 5
    first, middle = sample(logits, 15, state=7)
    rest, end = sample(logits, 25, state=middle)
    assert (np.concatenate([first, rest]) == ids).all() and end == state
    assert (sample(logits, 40, state=8)[0] != ids).any()

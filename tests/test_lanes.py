"""The lanes without a GPU: the CUDA backend's streams, events and graphs on tests/emulation, against the CPU backend.

Whatever the switches, the order in which streams are served and the delays: the bits are those of the serial run, and
no rule of the runtime is broken. What each edge is for shows when it is left out.
"""

import itertools
import threading

import emulated
import numpy as np
import pytest
from emulated import BATCHES, HYPER, KINDS, SMALL, THREADS, Feed, enqueue, make, notes, serve, state, train
from engine import EngineError, ffi, same
from test_gpu import edges

STEPS, STRESS_US = 12, 150
SEEDS = (THREADS, 0, 1, 2, 3)  # how streams are served
SWITCHES = list(itertools.product((1, 4), (0, 1)))  # streams, graph

# An edge is in one of the two: noticed when it is left out, or why no run can notice.
SEEN = {"inputs_ready", "targets_ready", "inputs_free", "targets_free", "token_losses_ready", "mean_loss_ready",
        "result_ready", "snapshot_taken"}
UNSEEN = {
    "result_on_host": "the gate that would overwrite a record belongs to the update that makes its ticket too old to ask for",
}


@pytest.fixture(autouse=True)
def rules_are_kept():
    serve(THREADS)
    yield
    broken = emulated.violations()
    serve(THREADS)
    assert not broken, broken


@pytest.fixture(scope="module")
def serial():
    """Runs of the CPU backend, by micro-steps an update and options: nothing there can be out of order."""
    known = {}

    def run(micro_steps=1, **options):
        key = (micro_steps, *sorted(options.items()))
        if key not in known:
            known[key] = train("cpu", STEPS, micro_steps, **options)[:2]
        return known[key]

    losses = [loss for loss, _ in run()[0]]
    assert len(set(losses)) == STEPS and losses[-1] < losses[0]
    return run


# -- the same bits


@pytest.mark.parametrize("streams, graph", SWITCHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_switches_do_not_change_a_bit(serial, seed, streams, graph):
    """A loader's thread hands the batches over; with threads, random delays at every edge as well."""
    for prefetch, stress, micro_steps, lag in itertools.product((0, 3), (0, STRESS_US), (1, 2), (0, 2)):
        if seed != THREADS and stress:
            continue
        serve(seed)
        options = {"streams": streams, "graph": graph, "prefetch": prefetch, "stress": stress}
        *run, note = train(emulated.NAME, STEPS, micro_steps, lag, loader=True, **options)
        assert tuple(run) == serial(micro_steps), (options, micro_steps, lag)
        assert note == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_neither_do_they_with_other_bodies(serial, seed):
    for options in ({"head_chunks": 2}, {"recompute": 2}, {"gelu_fusion": 2}, {"slots": 2}):
        serve(seed)
        *run, note = train(emulated.NAME, STEPS, 2, 2, loader=True, **options)
        assert (tuple(run), note) == (serial(2, **options), ""), options


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_is_free_when_it_is_handed_out(serial, seed):
    """Two slots, each overwritten as soon as the engine gives it, and a device that is updates behind."""
    serve(seed)
    run = train(emulated.NAME, STEPS, lag=3, ahead=1, slots=2, stress=STRESS_US if seed == THREADS else 0)
    assert run[:2] == serial()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_update_may_take_more_micro_steps_than_the_last(seed):
    """What a graph was captured with is not what another accumulation needs."""

    def run(model):
        feed, results = Feed(model, BATCHES, 2, False), []
        for step, micro_steps in enumerate((1, 2, 3, 1, 2, 3, 3, 1)):
            results += enqueue(model, feed, step, step + 1, micro_steps)
        return results, state(model)

    with make("cpu") as model:
        expected = run(model)
    serve(seed)
    with make() as model:
        assert run(model) == expected


@pytest.mark.parametrize("streams", [1, 4])
def test_a_loader_stays_out_of_a_capture(serial, streams):
    """Captures that last: without the lock, uploads come into them."""
    lib = serve(THREADS)
    lib.emulated_slow_captures(300)
    *run, note = train(emulated.NAME, STEPS, lag=2, loader=True, streams=streams)
    assert (tuple(run), note) == (serial(), "")


# -- what the edges are for


def snapshot_differs(seed, edge):
    """Whether a snapshot's bits are not those of its moment, in a run with this edge left out."""
    serve(seed)
    with make(drop_edge=edge) as model:
        feed = Feed(model, BATCHES, 1, False)
        enqueue(model, feed, 0, 3)
        now = [model.read(kind) for kind in KINDS]
        model.call("snapshot_take")
        return not same(download(model), now)


def noticed_without(edge, serial):
    """Far ahead of the device, where a buffer can be overwritten too early; and just in time, where it can be read so."""
    for seed in range(8):
        for ahead, lag in ((2, 3), (1, 0)):
            serve(seed)
            run = train(emulated.NAME, STEPS, ahead=ahead, lag=lag, graph=seed % 2, drop_edge=edge)
            if run[:2] != serial():
                return True
    return any(snapshot_differs(seed, edge) for seed in range(8))


def test_a_missing_wait_is_noticed(serial):
    """The equality above can fail, for each edge but those of which the reason is given."""
    names = edges()
    assert not SEEN & set(UNSEEN) and SEEN | set(UNSEEN) == set(names)  # a new edge has to be placed
    assert not noticed_without(-1, serial)
    assert {name for edge, name in enumerate(names) if noticed_without(edge, serial)} == SEEN


# -- snapshots


def download(engine):
    """The snapshot's kinds, in their order."""
    return [engine.read_snapshot(kind) for kind in KINDS]


@pytest.mark.parametrize("streams, graph", SWITCHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_snapshots_beside_training(serial, seed, streams, graph):
    """Read by a thread while updates run: the bits of their moment, and training's unchanged."""
    with make("cpu") as model:
        feed, moments = Feed(model, BATCHES, 1, False), {}
        for first, until in ((0, 1), (1, 4), (4, 8)):
            enqueue(model, feed, first, until)
            moments[until] = [model.read(kind) for kind in KINDS]
    serve(seed)
    with make(streams=streams, graph=graph, stress=STRESS_US if seed == THREADS else 0) as model:
        feed, done = Feed(model, BATCHES, 2, False), 0
        for until, moment in moments.items():
            enqueue(model, feed, done, until, lag=3)
            model.call("snapshot_take")
            found = []
            thread = threading.Thread(target=lambda: found.extend(download(model)))
            thread.start()
            done = until + 2
            enqueue(model, feed, until, done, lag=3)
            thread.join(60)
            model.call("snapshot_release")
            assert same(found, moment), until
        enqueue(model, feed, done, STEPS)
        assert state(model) == serial()[1]
        assert notes(model) == ""


# -- beside the steps


def looked_at(model, trains):
    """Evaluation, logits and generation, between updates if the model trains; all that comes of it."""
    found, feed = [], Feed(model, BATCHES, 1, False)
    prompt = BATCHES[0][0][:, :3]
    for turn in range(3):
        if trains:
            # the last update of each turn is still under way when the model is looked at
            for step in range(3 * turn, 3 * turn + 3):
                model.call("micro_step", next(feed), 0, 1)
                model.update(step=step + 1, **HYPER)
        found += [model.eval(*BATCHES[40 + i]) for i in range(3)]
        found.append(model.logits(BATCHES[50][0]))
        found.append(model.prefill(prompt))
        found += [model.decode(np.argmax(found[-1], axis=-1)) for _ in range(4)]
    return np.concatenate([np.ravel(value) for each in found for value in (each if isinstance(each, tuple) else (each,))])


@pytest.mark.parametrize("streams, graph", SWITCHES)
@pytest.mark.parametrize("trains", [1, 0])
def test_evaluation_and_generation(streams, graph, trains):
    with make("cpu", train=trains) as model:
        expected = looked_at(model, trains)
    for seed in SEEDS:
        serve(seed)
        with make(train=trains, streams=streams, graph=graph, stress=STRESS_US if seed == THREADS else 0) as model:
            assert np.array_equal(looked_at(model, trains), expected), seed
            assert notes(model) == ""


@pytest.mark.parametrize("verb", ["eval", "logits"])
@pytest.mark.parametrize("seed", SEEDS)
def test_evaluation_beside_a_loader(seed, verb):
    """A thread refills each slot as soon as its evaluation is enqueued; the device comes to it later."""

    def results(model, loader):
        feed, found = Feed(model, BATCHES, 1, loader), []
        for _ in BATCHES:
            out = np.empty((emulated.B, emulated.T, SMALL.vocab if verb == "logits" else 1), np.float32)
            pointer = ffi.from_buffer("float[]", out)
            model.call(verb, next(feed), pointer, out.nbytes if verb == "logits" else ffi.new("float *"))
            found.append(out)
        feed.close()
        return np.array(found)

    with make("cpu") as model:
        expected = results(model, False)
    for graph in (0, 1):
        serve(seed)
        with make(graph=graph, slots=2, stress=2000 if seed == THREADS else 0) as model:
            assert np.array_equal(results(model, True), expected), graph


@pytest.mark.parametrize("seed", SEEDS)
def test_evaluation_between_micro_steps(seed):
    """It writes the token losses of which the mean is still to be made."""

    def run(model):
        feed, found = Feed(model, BATCHES, 2, False), []
        for step in range(8):
            model.call("micro_step", next(feed), 0, 2)
            found.append(model.eval(*BATCHES[40])[0])
            model.call("micro_step", next(feed), 1, 2)
            found.append(model.result(model.update(step=step + 1, **HYPER)).loss)
        return found, state(model)

    with make("cpu") as model:
        expected = run(model)
    for graph in (0, 1):
        serve(seed)
        with make(graph=graph, stress=STRESS_US if seed == THREADS else 0) as model:
            assert run(model) == expected, graph


# -- what is called, and when

CAPTURE, LAUNCH = "cudaStreamBeginCapture", "cudaGraphLaunch"
WAITS = {"cudaStreamSynchronize", "cudaEventSynchronize"}
SLOTS, RESULTS = 3, 4


def graph_calls():
    return [name for name in emulated.calls() if name in (CAPTURE, LAUNCH)]


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_graphs_are_captured_once_and_then_launched(micro_steps):
    lib = serve(THREADS)
    with make() as model:
        feed = Feed(model, BATCHES, 2, False)
        lib.emulated_log()
        enqueue(model, feed, 0, 1, micro_steps)
        # forward, head and backward for each slot, the update for each record; a second micro-step adds where the first
        # assigned, but goes forward alike
        later = ([LAUNCH] + [CAPTURE] * 2 * SLOTS) * (micro_steps - 1)
        assert graph_calls() == [CAPTURE] * 3 * SLOTS + later + [CAPTURE] * RESULTS
        lib.emulated_log()
        enqueue(model, feed, 1, 9, micro_steps, lag=2)
        assert graph_calls() == [LAUNCH] * (3 * micro_steps + 1) * 8
        # Each result may wait for its own step's end.
        waits = [name for name in emulated.calls() if name in WAITS]
        assert set(waits) == {"cudaEventSynchronize"} and len(waits) == 8


def test_a_timelines_graphs_are_made_before_they_are_launched():
    """Made between two launches, a graph would show as a gap in the step that is recorded."""
    lib = serve(THREADS)
    with make() as model:
        feed = Feed(model, BATCHES, 1, False)
        enqueue(model, feed, 0, 4)
        model.call("timeline_arm")
        lib.emulated_log()
        enqueue(model, feed, 4, 5)
        assert graph_calls() == [CAPTURE] * 3 + [LAUNCH] * 3 + [CAPTURE, LAUNCH]
        lib.emulated_log()
        enqueue(model, feed, 5, 6)
        assert graph_calls() == [LAUNCH] * 4
        spans = timeline(model)
    assert {lane for lane, *_ in spans} >= {"compute", "loss"}
    compute = sorted((start, end) for lane, _, start, end in spans if lane == "compute")
    assert all(a_end <= b_start for (_, a_end), (b_start, _) in itertools.pairwise(compute))
    assert sum(name == "attention" for _, name, *_ in spans) == SMALL.layers


def timeline(model):
    """(lane, name, start, end) of each span."""
    spans, count = ffi.new("llmc_span[]", 500), ffi.new("int32_t *")
    model.call("timeline_read", spans, 500, count)
    text = [[ffi.string(value).decode() for value in (span.lane, span.name)] for span in spans[0 : count[0]]]
    return [(*words, span.start_us, span.end_us) for words, span in zip(text, spans[0 : count[0]], strict=True)]


# -- what fails


@pytest.mark.parametrize("call", ["cudaGraphInstantiate", "cudaGraphUpload", "cudaStreamEndCapture",
                                  "captured embedding_forward", "captured classifier", "captured adamw"])  # fmt: skip
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_capture_that_fails_leaves_eager_steps(serial, call, nth):
    """STR-08: the capture is ended, a note says why and once, and the results are those with graphs."""
    lib = serve(THREADS)
    lib.emulated_fail(call.encode(), nth)
    *run, note = train(emulated.NAME, STEPS, lag=2, loader=True)
    assert tuple(run) == serial()
    assert note.count("graphs are off, steps run eagerly: capture failed (") == 1 and note.count("\n") == 0, note
    assert f"{call.removeprefix('captured ')} was asked to fail" in note


def test_after_a_capture_that_failed_none_is_tried():
    lib = serve(THREADS)
    with make() as model:
        feed = Feed(model, BATCHES, 2, False)
        lib.emulated_fail(b"cudaGraphInstantiate", SLOTS + 1)  # forward has its graphs, head gets none
        enqueue(model, feed, 0, 1)
        lib.emulated_log()
        enqueue(model, feed, 1, 4)
        assert graph_calls() == []


@pytest.mark.parametrize("call", ["cudaGraphInstantiate", "captured gelu_backward", "captured gate"])
def test_a_timeline_is_recorded_without_graphs_too(serial, call):
    lib = serve(THREADS)
    with make(gelu_fusion=0) as model:
        feed = Feed(model, BATCHES, 1, False)
        enqueue(model, feed, 0, 4)
        model.call("timeline_arm")
        lib.emulated_fail(call.encode(), 1)
        enqueue(model, feed, 4, 5)
        assert "was asked to fail" in notes(model)
        assert {name for _, name, *_ in timeline(model)} >= {"embedding", "attention bwd", "adamw"}
        enqueue(model, feed, 5, STEPS)
        assert state(model) == serial()[1]


def test_a_launch_that_fails_poisons_the_model():
    lib = serve(THREADS)
    with make() as model:
        feed = Feed(model, BATCHES, 1, False)
        enqueue(model, feed, 0, 2)
        lib.emulated_fail(b"cudaGraphLaunch", 2)
        with pytest.raises(EngineError, match="DEVICE: .*cudaGraphLaunch was asked to fail"):
            enqueue(model, feed, 2, 3)
        with pytest.raises(EngineError, match="DEVICE: "):
            model.eval(*BATCHES[0])

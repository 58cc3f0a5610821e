"""Multiple-choice accuracy against mean losses of the float64 model, and on examples whose answers are known."""

import math

import numpy as np
import oracle
import pytest

from pyllmc import GPT2, GPT2Config
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.evaluation import Questions, accuracy, answers
from pyllmc.formats import write_multiple_choice
from pyllmc.multiple_choice import Example

CONFIG = GPT2Config(layers=2, heads=2, channels=32, vocab=60, context=24)
T = 24


def example(label, context, *completions):
    return Example(0, label, np.array(context, np.uint16), tuple(np.array(c, np.uint16) for c in completions))


def random_examples(count, longest=12, seed=0, choices=4):
    random = np.random.default_rng(seed)
    ids = lambda most: random.integers(0, CONFIG.vocab, random.integers(1, most + 1))  # noqa: E731
    return [example(random.integers(choices), ids(longest), *(ids(longest) for _ in range(choices))) for _ in range(count)]


def make(batch, seq_len=T, params=None, **options):
    model = GPT2.from_config(CONFIG, init="zeros", batch=batch, seq_len=seq_len, device="cpu", **options)
    for name, value in (params or oracle.random_params(CONFIG)).items():
        model.params[name] = value
    return model


def mean_losses(found, params):
    """float64 mean loss of each completion, one row at a time."""
    scores = []
    for completion in found.completions:
        row = np.concatenate([found.context, completion]).astype(int)[None]
        losses = oracle.losses(oracle.widened(params), row[:, :-1], row[:, 1:], CONFIG)[0]
        scores.append(losses[-len(completion) :].mean())
    return scores


@pytest.fixture(scope="module")
def judged():
    """(examples, the float64 model's answers), the answers being clear and each label standing somewhere."""
    params = oracle.random_params(CONFIG)
    examples = random_examples(23)
    scores = [sorted(mean_losses(e, params)) for e in examples]
    assert min(s[1] - s[0] for s in scores) > 1e-4  # else rounding could decide
    expected = [int(np.argmin(mean_losses(e, params))) for e in examples]
    assert set(expected) == {0, 1, 2, 3}
    return examples, expected


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8])
def test_answers_are_those_of_the_float64_model(judged, batch):
    examples, expected = judged
    with make(batch) as model:
        assert list(answers(model, Questions(examples, T, CONFIG.vocab))) == expected
        right = sum(e.label == answer for e, answer in zip(examples, expected, strict=True))
        assert accuracy(model, examples) == (right / 23, right, 23)


def test_numbers_of_choices_may_differ(judged):
    params = oracle.random_params(CONFIG)
    mixed = [e for choices in (1, 2, 5, 3) for e in random_examples(2, seed=choices, choices=choices)]
    with make(3, params=params) as model:
        found = list(answers(model, Questions(mixed, T, CONFIG.vocab)))
    assert found == [int(np.argmin(mean_losses(e, params))) for e in mixed]


def unigram_params(probabilities):
    """Parameters of a model that gives each id a fixed probability, whatever the context."""
    params = {name: np.zeros(shape, np.float32) for name, shape in CONFIG.shapes().items()}
    params["lnfb"][0] = 1
    params["wte"][: CONFIG.vocab, 0] = -20
    for token, p in probabilities.items():
        params["wte"][token, 0] = math.log(p)
    return params


def test_the_mean_decides_not_the_sum():
    """Two tokens of probability 1/2 lose 1.39 nats in all, one of 1/3 only 1.10; their mean, 0.69, is the lower.
    The context doesn't count, nor do equal scores change the first answer."""
    params = unigram_params({1: 1 / 2, 2: 1 / 3, 3: 1 / 6})
    known = [
        (example(0, [3, 3], [1, 1], [2]), 0), (example(0, [1], [2], [1, 1, 1]), 1), (example(0, [9, 9], [3], [2], [2]), 1),
        (example(0, [1], [3, 1], [2, 2], [3, 2]), 1), (example(0, [7], [2, 3, 1], [1, 2, 3]), 0),
    ]  # fmt: skip
    with make(2, params=params) as model:
        found = list(answers(model, Questions([e for e, _ in known], T, CONFIG.vocab)))
    assert found == [answer for _, answer in known]


def test_only_the_completion_is_scored():
    """A context that the model finds unlikely, and targets beyond the row's end, change nothing."""
    params = unigram_params({1: 1 / 2, 2: 1 / 3})
    with make(1, params=params) as model:
        for context in ([2], [40] * 20, [1, 50, 1]):
            assert list(answers(model, Questions([example(1, context, [2], [1])], T, CONFIG.vocab))) == [1]


def test_from_a_file_with_progress(judged, tmp_path):
    examples, expected = judged
    write_multiple_choice(tmp_path / "e.bin", examples)
    told = []
    with make(5) as model:
        found = accuracy(model, tmp_path / "e.bin", told.append)
        assert found == accuracy(model, examples) and sum(told) == found.count == 23
        model.step(*oracle.random_batch(CONFIG, 5, T)).result()  # every slot was given back


@pytest.mark.parametrize("world", [2, 3, 30])
def test_ranks_share_the_examples(judged, world):
    with make(4) as model:
        whole = accuracy(model, judged[0])
        parts = [accuracy(model, judged[0], rank=rank, world=world) for rank in range(world)]
        assert (sum(p.correct for p in parts), sum(p.count for p in parts)) == whole[1:]
        assert world < 23 or math.isnan(parts[-1].accuracy)
        with pytest.raises(InvalidArgument, match="rank must be from 0 to 1"):
            accuracy(model, judged[0], rank=2, world=2)


def test_what_is_too_long_is_cut_or_left_out_with_a_note():
    params = oracle.random_params(CONFIG)
    random = np.random.default_rng(3)
    long, short = random.integers(0, 60, 40), random.integers(0, 60, (4, 3))
    whole = Questions([example(2, long[-6:], *short)], 8, 60)
    cut = Questions([example(2, long, *short), example(0, [1], long[:9], [2])], 8, 60)
    assert whole.notes == []  # 6 + 3 tokens are 8 inputs and the last target
    assert [r.tolist() for r in cut[0].rows] == [r.tolist() for r in whole[0].rows]
    assert cut.notes == [
        "the examples: 1 of 2 contexts lose their beginning in rows of 8",
        "the examples: 1 of 2 examples are longer than rows of 8 and left out",
    ]
    uneven = Questions([example(0, long, long[:2], long[:8])], 8, 60)  # all completions see the same context
    assert [len(row) for row in uneven[0].rows] == [3, 9]
    with make(3, 8, params) as model:
        expected = int(np.argmin(mean_losses(example(2, long[-6:], *short), params)))
        assert list(answers(model, cut)) == [expected]
        assert accuracy(model, cut).count == 1


def test_questions_for_longer_rows_are_refused():
    with make(1, 8) as model, pytest.raises(InvalidArgument, match="rows of 12 tokens, the model's have 8"):
        accuracy(model, Questions([example(0, [1] * 12, [2])], 24, 60))


def test_bad_examples_are_refused():
    with pytest.raises(FormatError, match="the examples: no example that can be evaluated: none there"):
        Questions([], 8, 60)
    with pytest.raises(FormatError, match="all have completions of more than 8 tokens"):
        Questions([example(0, [1], [2] * 9)], 8, 60)
    with pytest.raises(InvalidArgument, match="example 1: token id 60, vocabulary is 60"):
        Questions([example(0, [1], [2]), example(0, [1], [60])], 8, 60)


def test_a_model_that_has_diverged_knows_nothing():
    params = oracle.random_params(CONFIG)
    params["lnfb"][:] = np.nan
    with make(2, params=params) as model:
        assert accuracy(model, random_examples(5)) == (0.0, 0, 5)

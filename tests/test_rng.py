"""The generator and the initialisation against the reference's numbers."""

import json

import numpy as np
import pytest

from pyllmc.config import GPT2Config
from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.rng import CHUNK, Mt19937, initial_params

ULP = 2.0**-23


def test_generator_follows_the_reference_through_every_kind_of_draw(golden):
    wanted = json.loads((golden / "random_init.json").read_text())["generator"]
    generator = Mt19937(wanted["seed"])
    assert generator.u32(5).tolist() == wanted["uint32"]
    np.testing.assert_allclose(generator.normal(8), np.float32(wanted["then_normal_8"]), rtol=ULP)
    assert generator.u32(1)[0] == wanted["then_uint32"]
    np.testing.assert_allclose(generator.normal(16), np.float32(wanted["then_normal_16"]), rtol=ULP)
    assert generator.u32(1)[0] == wanted["then_uint32_2"]
    assert generator.permutation(10).tolist() == wanted["then_permutation_10"]


def test_first_numbers_of_the_published_generator():
    # the 10,000th number of std::mt19937 with its default seed is fixed by the C++ standard
    assert Mt19937(5489).u32(10000)[-1] == 4123659995


def test_d12_initialisation(golden):
    wanted = json.loads((golden / "random_init.json").read_text())
    params = initial_params(GPT2Config.from_descriptor("d12"))
    values = {
        "wte[50256,767]": params["wte"][50256, 767],
        "wpe[0,0]": params["wpe"][0, 0],
        "qkvw[0,0,0]": params["qkvw"][0, 0, 0],
        "qkvw[11,2303,767]": params["qkvw"][11, 2303, 767],
        "fcprojw[11,767,3071]": params["fcprojw"][11, 767, 3071],
    }
    for name, value in values.items():
        assert abs(value - wanted[name]) <= 2 * ULP * abs(wanted[name]), name
    np.testing.assert_allclose(params["wte"][0, :2], wanted["wte[0,0:2]"], rtol=2 * ULP)
    assert not params["wte"][50257:].any()
    assert (params["ln1w"] == 1).all() and not params["ln1b"].any() and not params["qkvb"].any()


def test_state_survives_and_continues():
    for drawn in (0, 1, 623, 624, 625, 3000):
        generator = Mt19937(42)
        generator.u32(drawn)
        raw = generator.to_bytes()
        assert len(raw) == 2520
        other = Mt19937.from_bytes(raw)
        assert other.to_bytes() == raw
        np.testing.assert_array_equal(other.u32(1300), generator.u32(1300))


def test_fresh_state_is_that_of_the_reference():
    left, used = np.frombuffer(Mt19937(42).to_bytes(), "<u4", 2, 8)
    assert (left, used) == (1, 0)


def test_impossible_states():
    raw = bytearray(Mt19937(1).to_bytes())
    with pytest.raises(FormatError, match="2519 bytes"):
        Mt19937.from_bytes(raw[:-1])
    raw[8:12] = (700).to_bytes(4, "little")
    with pytest.raises(FormatError, match="left 700"):
        Mt19937.from_bytes(raw)
    with pytest.raises(InvalidArgument, match="seed"):
        Mt19937(-1)


def test_call_sizes_do_not_alter_the_stream():
    whole, parts = Mt19937(7), Mt19937(7)
    np.testing.assert_array_equal(whole.u32(2000), np.concatenate([parts.u32(n) for n in (0, 1, 1999)]))


def plain_shuffle(generator, n):
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = int(generator.u32(1)[0]) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 65536, 65537, 65538, 70000])
def test_permutation_in_chunks_equals_one_by_one(n):
    quick, slow = Mt19937(5), Mt19937(5)
    order = quick.permutation(n)
    if n <= 100:
        assert order.tolist() == plain_shuffle(slow, n)
        assert quick.to_bytes() == slow.to_bytes()
    else:
        draws = slow.u32(n - 1)
        assert quick.u32(1) == slow.u32(1)
        expected = list(range(n))
        for i, draw in zip(range(n - 1, 0, -1), draws.tolist(), strict=True):
            j = draw % (i + 1)
            expected[i], expected[j] = expected[j], expected[i]
        assert order.tolist() == expected


@pytest.mark.parametrize("n", [16, 17, 31, 32, 65536, 65537, 131072 + 5])
def test_long_fills_draw_the_tail_group_again(n):
    """The stream position after a fill, and that all but the last 16 values come from the first draws."""
    generator, plain = Mt19937(11), Mt19937(11)
    values = generator.normal(n)
    full = plain.normal(n - n % 16)
    if n % 16:
        np.testing.assert_array_equal(values[: n - 16], full[: n - 16])
        plain.u32(n % 16)
        np.testing.assert_array_equal(values[-16:], plain.normal(16))
    assert generator.u32(1) == plain.u32(1)


@pytest.mark.parametrize("n", [1, 7, 15])
def test_short_fills_use_whole_pairs(n):
    generator, plain = Mt19937(11), Mt19937(11)
    np.testing.assert_array_equal(generator.normal(n), np.concatenate([plain.normal(n - 1), plain.normal(1)]))
    skipped = Mt19937(11)
    skipped.u32(2 * (n + 1))  # two numbers for a double, two doubles for a pair
    assert generator.u32(1) == skipped.u32(1)


def test_initialisation_of_a_small_model():
    config = GPT2Config(2, 2, 32, 257, 16)
    params, again, other = (initial_params(config, seed) for seed in (1, 1, 2))
    assert {name: values.shape for name, values in params.items()} == config.shapes()
    assert all(np.array_equal(params[name], again[name]) for name in params)
    assert not np.array_equal(params["wpe"], other["wpe"])
    assert abs(params["fcprojw"].std() - 0.01) < 3e-4  # 0.02 / sqrt(2 * 2 layers)
    assert abs(params["fcw"].std() - 0.02) < 5e-4


def test_normal_numbers_do_not_depend_on_when_the_arithmetic_is_done():
    for n in (16, 31, 1000, CHUNK, CHUNK + 3, 2 * CHUNK + 17):
        at_once, generator, late = Mt19937(3), Mt19937(3), []
        out = np.empty(n, np.float32)
        generator.fill_normal(out, 0.5, 2, run=lambda *call, late=late: late.append(call))
        for function, *arguments in reversed(late):  # blocks don't overlap, so any order will do
            function(*arguments)
        np.testing.assert_array_equal(out, at_once.normal(n, 0.5, 2))
        assert generator.to_bytes() == at_once.to_bytes()

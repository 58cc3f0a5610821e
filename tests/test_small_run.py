"""What a GPU is given to do when nothing is asked for."""

from types import SimpleNamespace

import pytest

from pyllmc import small_run
from pyllmc.config import GPT2Config
from pyllmc.errors import InvalidArgument
from pyllmc.flops import flops_per_token

CONFIG = GPT2Config(12, 12, 768, 257, 256)
GIB = 2**30


def choose(free_gib=139, tflops=989, tokens=550_000, shortest=60_000, **given):
    def plan_of(rows):  # d12 as measured: 2.5 GB and 0.4 GB for each row
        return SimpleNamespace(total=(2.5 + 0.4 * rows) * GIB, device_free=free_gib * GIB)

    return small_run.choose(CONFIG, 256, tokens, shortest, plan_of, tflops, **given)


def test_a_large_gpu():
    found = choose()
    assert (found["batch"], found["total_tokens"]) == (16, 4096)
    assert found["steps"] == small_run.EPOCHS * 550_000 // 4096  # the text is short: not the minute decides
    assert 0 < found["warmup"] < found["val_every"] < found["sample_every"] < found["steps"]


@pytest.mark.parametrize("free, batch", [(139, 16), (9, 8), (6, 4), (4.2, 2), (3.3, 1), (1, 1)])
def test_the_batch_fits_and_the_update_stays_the_same(free, batch):
    found = choose(free)
    assert (found["batch"], found["total_tokens"]) == (batch, 4096)


def test_a_long_text_takes_the_minute():
    for tflops in (989, 60):
        found = choose(tflops=tflops, tokens=10**9)
        seconds = found["steps"] * 4096 * flops_per_token(CONFIG, 256) / (small_run.SHARE_OF_PEAK * tflops * 1e12)
        assert seconds == pytest.approx(small_run.SECONDS, rel=0.05)
    assert choose(tflops=None, tokens=10**9)["steps"] == choose(tflops=small_run.UNKNOWN_TFLOPS, tokens=10**9)["steps"]


def test_a_short_text_still_gives_a_batch():
    assert choose(shortest=1200)["batch"] == 4
    assert choose(shortest=1200)["total_tokens"] == 4096
    assert choose(shortest=10, tokens=100)["batch"] == 1 and choose(tokens=100)["steps"] == 20


def test_what_the_user_decided():
    assert choose(batch=3)["total_tokens"] == 5 * 3 * 256
    assert choose(batch=64)["total_tokens"] == 64 * 256
    found = choose(total_tokens=1024)
    assert (found["total_tokens"], found["batch"]) == (1024, 4)
    for wrong in (0, -3):
        with pytest.raises(InvalidArgument, match="batch must be at least 1"):
            choose(batch=wrong)

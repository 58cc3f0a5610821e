"""Runs steps as training does, to look at them: the next batch uploads while a step computes."""

import statistics
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from ..gpt2 import GPT2

BATCHES = 4  # that take turns
LAG = 2  # results are read so many steps late, as the trainer does on a GPU
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Steps:
    """device_ms: of each step, by the device's clock. wall_ms: of a step on average, by the host's."""

    device_ms: list
    wall_ms: float


class Runner:
    """A model with random tokens to train on. model: a GPT2. micro_steps: of an update."""

    def __init__(self, model, micro_steps=1, seed=0):
        self.model, self.micro_steps = model, micro_steps
        rng = np.random.default_rng(seed)
        shape = (BATCHES, 2, model.batch, model.seq_len)
        self._batches = rng.integers(0, model.config.vocab, shape, dtype=np.int32)
        self._uploads = 0
        self._ahead = self._upload()

    @property
    def distinct_tokens(self):
        """Different input tokens in a micro-batch: the median over the batches that take turns."""
        return int(statistics.median(np.unique(inputs).size for inputs, _ in self._batches))

    def step(self):
        """Enqueue an update; returns its StepHandle."""
        for i in range(self.micro_steps):
            self.model.micro_step(self._ahead, i, self.micro_steps)
            self._ahead = self._upload()
        return self.model.update(lr=LEARNING_RATE)

    def run(self, count, on_step=lambda: None):
        """The Steps of `count` updates one after another, without spans."""
        pending, device = deque(), []
        self.model.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            pending.append(self.step())
            if len(pending) > LAG:
                device.append(pending.popleft().result().device_ms)
            on_step()
        self.model.synchronize()
        wall = 1e3 * (time.perf_counter() - start) / max(count, 1)
        return Steps(device + [handle.result().device_ms for handle in pending], wall)

    def record(self):
        """The spans of one update, with the events of a timeline around every op."""
        self.model.arm_timeline()
        self.step().result()
        self.model.synchronize()
        return self.model.timeline()

    def _upload(self):
        inputs, targets = self._batches[self._uploads % BATCHES]
        self._uploads += 1
        slot = self.model.acquire_slot()
        with slot:
            slot.inputs[:] = inputs
            slot.targets[:] = targets
            slot.submit()
        return slot


def make_model(config, weights, where):
    """The model with these Weights, or of a config with random ones. where: keywords of GPT2."""
    if weights is not None:
        return weights.load(**where)
    return GPT2.from_config(config, **where)

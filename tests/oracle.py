"""GPT-2 in float64 NumPy, differentiated by autograd: the yardstick that shares nothing with the engine.

Everything is written the shortest way, not the fast one. Parameters are a dict of arrays with the names
and shapes of `GPT2Config.shapes()`; logits are unpadded.
"""

import autograd.numpy as np
import numpy
from autograd import value_and_grad

MATRICES = ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")  # those that AdamW decays


def widened(params):
    """The same parameters in float64."""
    return {name: numpy.asarray(value, numpy.float64) for name, value in params.items()}


def layernorm(x, w, b):
    centred = x - np.mean(x, -1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5) * w + b


def gelu(x):
    return 0.5 * x * (1 + np.tanh(numpy.sqrt(2 / numpy.pi) * (x + 0.044715 * x**3)))


def log_softmax(x):
    x = x - np.max(x, -1, keepdims=True)
    return x - np.log(np.sum(np.exp(x), -1, keepdims=True))


def attention(qkv, heads):
    """qkv (B, T, 3C) to (B, T, C): each position looks at itself and what came before."""
    B, T, C3 = qkv.shape
    q, k, v = np.transpose(np.reshape(qkv, (B, T, 3, heads, C3 // 3 // heads)), (2, 0, 3, 1, 4))
    scores = q @ np.swapaxes(k, -1, -2) / numpy.sqrt(C3 // 3 // heads)
    scores = np.where(numpy.tri(T, dtype=bool), scores, -numpy.inf)
    mixed = np.exp(log_softmax(scores)) @ v
    return np.reshape(np.swapaxes(mixed, 1, 2), (B, T, C3 // 3))


def logits(params, inputs, config):
    """(B, T, V) for the ids `inputs` (B, T)."""
    p = params
    x = p["wte"][inputs] + p["wpe"][: inputs.shape[1]]
    for i in range(config.layers):
        h = layernorm(x, p["ln1w"][i], p["ln1b"][i]) @ p["qkvw"][i].T + p["qkvb"][i]
        x = x + attention(h, config.heads) @ p["attprojw"][i].T + p["attprojb"][i]
        h = layernorm(x, p["ln2w"][i], p["ln2b"][i]) @ p["fcw"][i].T + p["fcb"][i]
        x = x + gelu(h) @ p["fcprojw"][i].T + p["fcprojb"][i]
    return layernorm(x, p["lnfw"], p["lnfb"]) @ p["wte"][: config.vocab].T


def losses(params, inputs, targets, config):
    """Cross-entropy in nats at every position, (B, T)."""
    B, T = inputs.shape
    logp = log_softmax(logits(params, inputs, config))
    return -logp[numpy.arange(B)[:, None], numpy.arange(T), targets]


def loss(params, inputs, targets, config):
    return np.mean(losses(params, inputs, targets, config))


def loss_and_grads(params, inputs, targets, config):
    """The mean loss and {name: gradient}; `params` are widened first."""
    value, grads = value_and_grad(loss)(widened(params), inputs, targets, config)
    return float(value), grads


def norm(grads):
    """Global L2 norm."""
    return float(numpy.sqrt(sum(numpy.sum(numpy.square(g, dtype=numpy.float64)) for g in grads.values())))


class AdamW:
    """AdamW with decoupled decay of the matrices and clipping of the global norm, in float64."""

    def __init__(self, params, *, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.0, clip=0.0):
        self.params = widened(params)
        self.m = {name: numpy.zeros_like(p) for name, p in self.params.items()}
        self.v = {name: numpy.zeros_like(p) for name, p in self.params.items()}
        self.beta1, self.beta2, self.eps, self.decay, self.clip = beta1, beta2, eps, decay, clip
        self.steps = 0

    def update(self, grads, lr):
        """One step; returns the norm before clipping."""
        self.steps += 1
        total = norm(grads)
        scale = self.clip / total if 0 < self.clip < total else 1.0
        for name, p in self.params.items():
            g = scale * numpy.asarray(grads[name], numpy.float64)
            self.m[name] = self.beta1 * self.m[name] + (1 - self.beta1) * g
            self.v[name] = self.beta2 * self.v[name] + (1 - self.beta2) * g * g
            mean = self.m[name] / (1 - self.beta1**self.steps)
            deviation = numpy.sqrt(self.v[name] / (1 - self.beta2**self.steps))
            decay = self.decay if name in MATRICES else 0.0
            self.params[name] = p - lr * (mean / (deviation + self.eps) + decay * p)
        return total


def cosine(step, *, peak, steps, warmup, final):
    """Learning rate of the 0-based `step`: linear warm-up, then half a cosine down to final * peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / (steps - warmup)
    return final * peak + 0.5 * (1 + numpy.cos(numpy.pi * done)) * (1 - final) * peak


def random_params(config, seed=0, scale=0.25):
    """float32 parameters that make every gradient matter: biases not 0, LayerNorm gains not 1."""
    random = numpy.random.default_rng(seed)
    params = {}
    for name, shape in config.shapes().items():
        value = random.standard_normal(shape) * scale / (numpy.sqrt(shape[-1]) if name in MATRICES[2:] else 1)
        if name in ("ln1w", "ln2w", "lnfw"):
            value += 1
        params[name] = value.astype(numpy.float32)
    params["wte"][config.vocab :] = 0
    return params


def random_batch(config, B, T, seed=0):
    """Random inputs and targets, int32 (B, T)."""
    ids = numpy.random.default_rng(seed).integers(0, config.vocab, (2, B, T), dtype=numpy.int32)
    return ids[0], ids[1]


def distance(found, expected):
    """Relative L2 distance; of an all-zero expectation the absolute one."""
    found, expected = numpy.asarray(found, numpy.float64), numpy.asarray(expected, numpy.float64)
    size = numpy.linalg.norm(expected)
    return float(numpy.linalg.norm(found - expected) / (size or 1.0))

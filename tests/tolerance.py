"""How far the engine may be from the truth, per backend, each limit with its reason.

"grads", "logits" and "weights" are relative L2 distances per tensor, "loss" and "norm" relative
differences, "trajectory" an absolute difference of losses in nats.
"""

from typing import NamedTuple


class Limit(NamedTuple):
    cpu: float
    cuda: float
    why: str


LIMITS = {
    "logits": Limit(5e-6, 1e-4, "fp32 sums of up to 4C terms, two layers deep; PyTorch fp32 is 2.5e-7 away"),
    "loss": Limit(2e-6, 1e-5, "a mean of fp32 logarithms; PyTorch fp32 is 1e-7 away"),
    "grads": Limit(2e-5, 1e-4, "the backward pass doubles the sums; PyTorch fp32 is 7e-7 away"),
    "norm": Limit(1e-5, 1e-4, "rounding of single gradients averages out in their norm"),
    "weights": Limit(1e-5, 1e-4, "AdamW divides by a root of squared gradients, eps keeps noise from deciding signs"),
    "update": Limit(2e-6, 2e-6, "one AdamW step on the same fp32 gradients: a dozen roundings per element"),
    "overfit": Limit(1e-4, 1e-4, "ten steps that the clipped update feeds back on; float64 is 4e-6 away"),
    "trajectory": Limit(1e-4, 1e-3, "40 steps; float64 is 1.1e-6 away from the fp32 reference"),
    "same": Limit(2e-6, 1e-5, "the same sums in another order"),
    "bf16 loss": Limit(5e-3, 2e-2, "weights of 8 significant bits, seen in nats on an untrained model"),
    "bf16 logits": Limit(0, 2e-2, "activations rounded to 2^-9 some ten times over on the way through two layers"),
    "bf16 grads": Limit(0, 5e-2, "the same again backwards, and small sums of large terms; never on the CPU"),
    "tf32 grads": Limit(0, 5e-3, "factors of 11 significant bits, sums in fp32"),
}


def limit(name, backend="cpu"):
    return getattr(LIMITS[name], backend)

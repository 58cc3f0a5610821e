"""The shape of a GPT-2 model and the names of well-known shapes."""

import math
import re
from dataclasses import dataclass, fields

from .errors import InvalidArgument, nearest

VOCAB_MULTIPLE = 128  # rows of the token table are padded to this, so that the output head tiles evenly
INT32_MAX = 2**31 - 1
GPT2_VOCAB = 50257


@dataclass(frozen=True)
class GPT2Config:
    """layers L, heads NH, channels C, vocab V (without padding), context = longest sequence maxT.

    Any positive sizes with C divisible by NH are accepted. Token shards hold 16-bit ids, so of a
    vocabulary above 65,536 only the first 65,536 ids can appear in training data.
    Raises InvalidArgument naming the field.
    """

    layers: int
    heads: int
    channels: int
    vocab: int
    context: int

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            try:
                number = value.__index__()
            except AttributeError:
                number = None
            if number is None or isinstance(value, bool) or not 1 <= number <= INT32_MAX:
                raise InvalidArgument(f"{field.name} must be an integer from 1 to {INT32_MAX}, got {value!r}")
            object.__setattr__(self, field.name, number)
        if self.channels % self.heads:
            raise InvalidArgument(
                f"channels ({self.channels}) must be divisible by heads ({self.heads}): "
                f"the remainder is {self.channels % self.heads}"
            )
        if self.padded_vocab > INT32_MAX:
            raise InvalidArgument(f"vocab {self.vocab} padded to {VOCAB_MULTIPLE} passes {INT32_MAX}")

    @property
    def padded_vocab(self):
        """Vp: V rounded up to a multiple of 128."""
        return -(-self.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def num_params(self):
        """Parameters of all 16 tensors, padding rows included."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    def shapes(self):
        """{name: shape} of the 16 parameter tensors, in the order of llm.c's files."""
        L, C = self.layers, self.channels
        widths = {  # per-layer tensors: rows x columns of a matrix, or the length of a vector
            "ln1w": (C,), "ln1b": (C,),
            "qkvw": (3 * C, C), "qkvb": (3 * C,),
            "attprojw": (C, C), "attprojb": (C,),
            "ln2w": (C,), "ln2b": (C,),
            "fcw": (4 * C, C), "fcb": (4 * C,),
            "fcprojw": (C, 4 * C), "fcprojb": (C,),
        }  # fmt: skip
        table = {"wte": (self.padded_vocab, C), "wpe": (self.context, C)}
        table.update((name, (L, *shape)) for name, shape in widths.items())
        table.update(lnfw=(C,), lnfb=(C,))
        return table

    @classmethod
    def from_descriptor(cls, text):
        """A known shape: "d12" or "gpt2:d12" (layers), "gpt3:c768" (channels). Vocabulary: GPT-2's.

        Raises InvalidArgument with the nearest known names.
        """
        found = re.fullmatch(r"(?:gpt2:)?d(\d{1,9})|gpt3:c(\d{1,9})", str(text))
        if found and found[1] and int(found[1]) in GPT2_SIZES:
            layers = int(found[1])
            channels, heads = GPT2_SIZES[layers]
            return cls(layers, heads, channels, GPT2_VOCAB, 1024)
        if found and found[2] and int(found[2]) in GPT3_SIZES:
            channels = int(found[2])
            layers, head_size = GPT3_SIZES[channels]
            if channels % head_size:
                raise InvalidArgument(
                    f"gpt3:c{channels} is not a usable shape: {channels} channels do not divide into "
                    f"heads of {head_size}; nearest usable: gpt3:c4096, gpt3:c12288"
                )
            return cls(layers, channels // head_size, channels, GPT2_VOCAB, 2048)
        family = [name for name in descriptors() if found and name.startswith("gpt3:") == bool(found[2])]
        number = found and int(found[1] or found[2])
        wanted = min(family, key=lambda name: abs(int(re.sub(r".*\D", "", name)) - number)) if found else text
        raise InvalidArgument(f"unknown model descriptor {text!r}: {nearest(wanted, descriptors())}")


# layers: (channels, heads)
GPT2_SIZES = {
    6: (384, 6), 12: (768, 12), 24: (1024, 16), 36: (1280, 20),
    48: (1600, 25), 60: (1920, 30), 72: (2880, 30), 84: (3456, 36),
}  # fmt: skip
# channels: (layers, channels per head). The 13B row is as published, and does not divide.
GPT3_SIZES = {
    384: (6, 64), 768: (12, 64), 1024: (24, 64), 1536: (24, 96), 2048: (24, 128),
    2560: (32, 80), 4096: (32, 128), 5140: (40, 128), 12288: (96, 128),
}  # fmt: skip


def descriptors():
    """Every descriptor that `GPT2Config.from_descriptor` accepts."""
    usable = [c for c, (_, head_size) in GPT3_SIZES.items() if c % head_size == 0]
    return [f"d{layers}" for layers in GPT2_SIZES] + [f"gpt3:c{c}" for c in usable]

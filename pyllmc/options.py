"""Keyword arguments to the structs that C fills with its own defaults."""

import functools

from . import _native
from .errors import InvalidArgument, nearest

# Fields with a name for each value, which Python spells as text. Everything else is a number or a flag.
WORDS = {
    "precision": {"fp32": "LLMC_FP32", "bf16": "LLMC_BF16"},
    "attention": {
        "auto": "LLMC_ATTENTION_AUTO", "cudnn": "LLMC_ATTENTION_CUDNN", "own": "LLMC_ATTENTION_OWN",
    },
    "prefetch": {
        "off": (), "host": ("LLMC_PREFETCH_HOST",), "l2": ("LLMC_PREFETCH_L2",),
        "all": ("LLMC_PREFETCH_HOST", "LLMC_PREFETCH_L2"),
    },
}  # fmt: skip
# Fields that a caller has no business to give: other arguments decide them.
OPTIONS_ELSEWHERE = {"device"}


@functools.cache
def fields(struct):
    """{name: cffi type} of the fields of the C struct `struct` ("llmc_options", "llmc_hyper"), in its order."""
    return {name: field.type for name, field in _native.interface().typeof(struct).fields}


def names(struct):
    """Field names of the C struct, in its order."""
    return list(fields(struct))


def check_names(given, struct, caller):
    """Raise TypeError for a keyword that is no field of the struct, naming the nearest one."""
    for name in given:
        if name not in fields(struct) or name in OPTIONS_ELSEWHERE:
            known = [name for name in names(struct) if name not in OPTIONS_ELSEWHERE]
            raise TypeError(f"{caller} has no option {name!r}: {nearest(name, known)}")


def fill(struct, given):
    """Set fields of the struct behind the pointer `struct` from the keywords `given`; None leaves C's value.

    Raises InvalidArgument for a value that is of the wrong kind or doesn't fit the field's type.
    """
    kinds = fields(_native.interface().typeof(struct).item.cname)
    for name, value in given.items():
        if value is None:
            continue
        kind = kinds[name]
        if name in WORDS and isinstance(value, str):
            value = _number_of_word(name, value)
        try:
            if kind.kind == "array":
                getattr(struct, name)[0 : kind.length] = bytes(value)
            elif kind.cname in ("float", "double"):
                setattr(struct, name, float(value))
            else:
                setattr(struct, name, value.__index__())
        except (TypeError, ValueError, OverflowError, AttributeError):
            what = {"float": "a number", "double": "a number"}.get(kind.cname, f"an integer ({kind.cname})")
            if kind.kind == "array":
                what = f"{kind.length} bytes"
            words = f" or one of {', '.join(WORDS[name])}" if name in WORDS else ""
            raise InvalidArgument(f"{name} must be {what}{words}, got {value!r}") from None


def word_of(name, number):
    """The text for a number of a field in WORDS ("bf16" for precision 1)."""
    return next(word for word in WORDS[name] if _number_of_word(name, word) == number)


def _number_of_word(name, word):
    try:
        meaning = WORDS[name][word]
    except KeyError:
        raise InvalidArgument(f"{name} {word!r}: {nearest(word, WORDS[name])}") from None
    values = _native.constants()
    return values[meaning] if isinstance(meaning, str) else sum(values[bit] for bit in meaning)

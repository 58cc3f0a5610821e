"""One colour for each kind of op in every picture: Okabe and Ito's, which differ for every kind of colour vision."""

from .op_costs import ATTENTION, CLASSIFIER, COPY, EMBEDDING, NORM, PRODUCT, UPDATE, kind_of

COLOURS = {
    PRODUCT: "#0072B2", ATTENTION: "#D55E00", NORM: "#009E73", CLASSIFIER: "#CC79A7", EMBEDDING: "#56B4E9",
    UPDATE: "#E69F00", COPY: "#6E6E6E",
}  # fmt: skip
UNKNOWN = "#BBBBBB"
GAP = "#B3261E"
LIGHT = (EMBEDDING, UPDATE, CLASSIFIER)  # on which dark letters are read better


def colour_of(name):
    """The colour of a span's op."""
    return COLOURS.get(kind_of(name), UNKNOWN)


def ink_on(name):
    """The colour of letters on it."""
    kind = kind_of(name)
    return "#222222" if kind is None or kind in LIGHT else "white"

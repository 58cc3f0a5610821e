"""Tokens on their way into the engine: checked arrays, and the batch slots they are copied to."""

import contextlib

import numpy as np

from .errors import InvalidArgument, StateError


def as_tokens(tokens, name="tokens"):
    """`tokens` as an array of any integer dtype, layout and writability. Raises InvalidArgument otherwise."""
    try:
        array = np.asarray(tokens)
    except ValueError:  # rows of unequal length
        array = None
    if array is None or (array.dtype.kind not in "iu" and array.size):
        found = "rows of different lengths" if array is None else f"dtype {array.dtype}"
        raise InvalidArgument(f"{name} must be integers in an array, got {found}")
    if array.size == 0:
        raise InvalidArgument(f"{name} is empty (shape {array.shape})")
    return array


def check_ids(tokens, vocab, name="tokens"):
    """Raise InvalidArgument for an id outside 0 to vocab-1, naming its position.

    The engine checks what it is given; this is for what an int32 could not carry to it, or would wrap.
    """
    # read as unsigned, a negative id is a huge one: one pass finds both kinds
    native = tokens.dtype.kind == "i" and tokens.dtype.isnative
    unsigned = tokens.view(f"u{tokens.itemsize}") if native else tokens
    if unsigned.max() >= vocab or (not native and tokens.min() < 0):
        where = np.unravel_index(int(np.argmax((tokens < 0) | (tokens >= vocab))), tokens.shape)
        position = ", ".join(str(int(i)) for i in where)
        raise InvalidArgument(f"{name}[{position}] is {tokens[where]}, expected 0 to {vocab - 1}")


def micro_batches(inputs, targets, B, T, vocab):
    """Pairs (inputs, targets) of arrays (B,T) from (B,T), (n,B,T) or a sequence of (B,T).

    Raises InvalidArgument for shapes, dtypes or ids that don't fit, before anything is handed out.
    """
    checked = []
    for name, tokens in (("inputs", inputs), ("targets", targets)):
        array = as_tokens(tokens, name)
        if array.shape == (B, T):
            array = array[None]
        if array.ndim != 3 or array.shape[1:] != (B, T):
            raise InvalidArgument(f"{name} must be ({B}, {T}) or (n, {B}, {T}), got {array.shape}")
        check_ids(array, vocab, name)
        checked.append(array)
    if checked[0].shape != checked[1].shape:
        raise InvalidArgument(f"inputs are {checked[0].shape} but targets {checked[1].shape}")
    return list(zip(*checked, strict=True))


class Slot:
    """Memory for one batch: `inputs` and `targets`, int32 (B,T), yours until submit().

    As a context manager it gives the slot back if the block leaves without submitting it, or by an exception
    before it was consumed. The views stay safe to read after the model is closed, but nothing written to them
    then, or after submit, is used.
    """

    def __init__(self, handle, index, inputs, targets):
        self._handle, self.index, self.inputs, self.targets = handle, index, inputs, targets
        self._state = "acquired"

    def submit(self):
        """Check the tokens and start the upload; returns at once.

        Raises InvalidArgument for a token that the vocabulary lacks: the slot is then still yours.
        """
        self._expect("acquired")
        self._handle.call("llmc_slot_submit", self.index)
        self.inputs.setflags(write=False)
        self.targets.setflags(write=False)
        self._state = "submitted"

    def release(self):
        """Give the slot back unused. Nothing happens if it was consumed or given back."""
        if self._state in ("acquired", "submitted"):
            self._state = "released"
            self._handle.call("llmc_slot_release", self.index)

    def consumed(self):
        """Called by the verb that took the submitted batch."""
        self._state = "consumed"

    def expect_submitted(self):
        self._expect("submitted")
        return self.index

    def _expect(self, state):
        if self._state != state:
            raise StateError(f"batch slot {self.index} is {self._state}, expected {state}")

    def __enter__(self):
        return self

    def __exit__(self, exception, *_):
        unused = ("acquired", "submitted") if exception else ("acquired",)
        if self._state in unused and not self._handle.closed:
            # Ctrl-C may come between the engine's taking the batch and our noting it: it must stay what is raised
            with contextlib.suppress(*[StateError] if exception else []):
                self.release()

"""Texts at which a stream ends, found although they come in pieces."""

from .errors import InvalidArgument


class StopText:
    """Passes text on up to the first of `stops`, of which no part is handed out.

    Characters that may be the beginning of a stop are held back until the next ones decide: at most one less
    than the longest stop has. `found` is the stop that was met, or None.
    """

    def __init__(self, stops=()):
        if "" in stops:
            raise InvalidArgument("a stop text must have at least one character")
        self._stops, self._held, self.found = tuple(stops), "", None

    def push(self, text):
        """What of the text so far is certain to be shown; "" once a stop was found."""
        if self.found is not None:
            return ""
        text = self._held + text
        # the stop that is complete first counts, so that it doesn't matter how the text was cut into pieces
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return text[: end - len(self.found)]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self):
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def overlap(text, stop):
    """Length of the longest end of `text` that `stop` begins with, but isn't whole."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)

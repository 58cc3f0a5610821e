"""A text as it is drawn: its pieces, the stream they are shown on, and the time they take."""

import sys
import time

from .console import count, encodable, harmless, has_size, short
from .stop_text import StopText


class Sample:
    """A text that grows: its ids, and what of it was shown. before: the text of the prompt's ids, if it is to be
    echoed. ended: why nothing follows, "" as long as something may."""

    def __init__(self, seed, vocabulary, stops, encoded, echo):
        self.seed, self.ids, self.text, self.ended = seed, [], "", ""
        self._decoder, self.before = vocabulary.decoder(encoded, echo)
        self.stop = StopText(stops)

    def push(self, token):
        """What becomes certain to be shown."""
        self.ids.append(token)
        return self._shown(self.stop.push(self._decoder.push(token)))

    def finish(self, ended):
        """What was still held back as the possible beginning of a stop. A character that the last token leaves
        unfinished is not shown: its bytes are among the ids alone."""
        self.ended = ended
        return self._shown(self.stop.finish())

    def _shown(self, piece):
        self.text += piece
        return piece


class Output:
    """stdout, in pieces that appear at once."""

    def __init__(self):
        self._within_line, self._is_terminal = False, has_size(sys.stdout)

    def write(self, text):
        if text:
            self._within_line = not text.endswith("\n")  # first: Ctrl-C may come as soon as the text is out
            sys.stdout.write(encodable(harmless(text) if self._is_terminal else text))
            sys.stdout.flush()

    def end_line(self):
        if self._within_line:
            self.write("\n")


class Timer:
    """prompt_s: seconds up to the first tokens; draw_s: for the others, whose number per second is tok_s."""

    def __init__(self):
        self.prompt_s = self.draw_s = 0.0
        self._later = 0

    @property
    def tok_s(self):
        return self._later / self.draw_s if self.draw_s else None

    def rounds(self, rows):
        """The rounds of a SideBySide, timed."""
        mark, first = time.perf_counter(), True
        for drawn in rows:
            now = time.perf_counter()
            if first:
                self.prompt_s += now - mark
            else:
                self.draw_s += now - mark
                self._later += len(drawn)
            first, mark = False, now
            yield drawn

    def summary(self, drawn):
        speed = f": {short(self.tok_s)} tok/s after the first" if self.tok_s else ""
        seconds = f"{self.prompt_s:.3g} s for the prompt and the first, {self.draw_s:.3g} s for the others"
        return f"{count(drawn, 'token')}, {seconds}{speed}"

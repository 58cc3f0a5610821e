"""What turns a prompt into a model's ids and its ids into text: a tokenizer, or plain numbers without one."""

import os
from pathlib import Path

from . import rundir
from .config import GPT2_VOCAB
from .errors import InvalidArgument, Unavailable
from .hf_vocabulary import has_vocabulary, read_vocabulary
from .tokenizer import StreamDecoder, load_tokenizer

BYTES_VOCAB = 257
BESIDE = (rundir.TOKENIZER, "gpt2_tokenizer.bin")  # looked for in the folder of the weights
NAMES = ("auto", "gpt2", "bytes", "ids")


def guess_tokenizer(vocab):
    """(Tokenizer or None, why there is none) for ids of which only the vocabulary's size is known."""
    # 50304: GPT-2's ids, padded for speed by other trainers; 256: bytes alone
    if GPT2_VOCAB <= vocab <= 50304:
        name = "gpt2"
    elif vocab in (BYTES_VOCAB - 1, BYTES_VOCAB):
        name = "bytes"
    else:
        return None, f"no known tokenizer has {vocab} ids (--tokenizer names a file)"
    try:
        return load_tokenizer(name), None
    except Unavailable as error:
        return None, str(error)


def tokenizer_beside(folder, vocab):
    """The Tokenizer that lies in the folder of weights with `vocab` ids, None without one or with another model's.

    Raises FormatError for a damaged file, Unavailable for a Hugging Face vocabulary of another kind.
    """
    for file in (Path(folder) / name for name in BESIDE):
        tokenizer = load_tokenizer(file) if os.path.exists(file) else None
        if tokenizer and tokenizer.n_vocab <= vocab:
            return tokenizer
    tokenizer = read_vocabulary(folder) if has_vocabulary(folder) else None
    return tokenizer if tokenizer and tokenizer.n_vocab <= vocab else None


def choose_vocabulary(name, vocab, folder):
    """(TextVocabulary or IdVocabulary, why it had to be ids or None) for a model of `vocab` ids.

    name: "auto", "gpt2", "bytes", "ids" or a tokenizer file. auto takes what lies beside the weights in `folder`,
    else what the number of ids tells, else ids: it never fails for want of a tokenizer. The others raise as
    load_tokenizer does.
    """
    if name == "ids":
        return IdVocabulary(vocab), None
    if name != "auto":
        return TextVocabulary(load_tokenizer(name), vocab), None
    try:
        tokenizer, missing = tokenizer_beside(folder, vocab), None
    except Unavailable as error:
        return IdVocabulary(vocab), str(error)
    if tokenizer is None:
        tokenizer, missing = guess_tokenizer(vocab)
    return (TextVocabulary(tokenizer, vocab), None) if tokenizer else (IdVocabulary(vocab), missing)


class TextVocabulary:
    """Text by a Tokenizer. name, and end: the id that separates documents, None where the model lacks it."""

    def __init__(self, tokenizer, vocab):
        self._tokenizer, self.name = tokenizer, tokenizer.name
        self.end = tokenizer.eot if tokenizer.eot < vocab else None

    def encode(self, raw, where):
        """Ids of bytes. Raises InvalidArgument that begins with `where` for what can't be encoded."""
        try:
            return self._tokenizer.encode_bytes(raw).tolist()
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"{where}: byte {error.start} is not UTF-8 text, which the tokenizer {self.name} needs"
            ) from None

    def beginning(self):
        """The prompt that stands for none: the end of the document before."""
        return self.encode(b"\n", "a line break") if self.end is None else [self.end]

    def decoder(self, before, echo):
        """(decoder of what follows the ids `before`, their text if they are echoed). It has read them in any
        case: a prompt may end within a character."""
        decoder = _TextDecoder(self._tokenizer)
        text = "".join(map(decoder.push, before))
        return decoder, text if echo else ""


class IdVocabulary:
    """Ids as decimal numbers with spaces between. end: None, for nothing tells which id it would be."""

    name, end = "ids", None

    def __init__(self, vocab):
        self._vocab = vocab

    def encode(self, raw, where):
        """The ids that are written in `raw`. Raises InvalidArgument that begins with `where` for anything else."""
        words = raw.replace(b",", b" ").split()
        for word in words:
            if not word.isdigit() or len(word) > 12 or int(word) >= self._vocab:
                shown = word.decode("utf-8", "replace")
                raise InvalidArgument(f"{where}: expected ids from 0 to {self._vocab - 1}, got {shown!r:.40}")
        return [int(word) for word in words]

    def beginning(self):
        return [self._vocab - 1]  # of GPT-2's and of the byte vocabulary the end-of-text

    def decoder(self, before, echo):
        """As TextVocabulary's."""
        decoder = _IdDecoder()
        return decoder, "".join(map(decoder.push, before)) if echo else ""


class _TextDecoder(StreamDecoder):
    """StreamDecoder that shows an id beyond the tokenizer, which a padded vocabulary has, as <id>."""

    def push(self, token):
        if token >= self._tokenizer.n_vocab:
            return f"{self.finish()}<{token}>"
        return super().push(token)


class _IdDecoder:
    def __init__(self):
        self._between = ""

    def push(self, token):
        text, self._between = f"{self._between}{token}", " "
        return text

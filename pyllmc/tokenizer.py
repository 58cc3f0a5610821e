"""Text to token ids and back."""

import codecs
import os

import numpy as np

from .errors import InvalidArgument, Unavailable, nearest
from .tokenizer_file import read_tokenizer_file

NAMES = ("gpt2", "bytes")
END_OF_TEXT = b"<|endoftext|>"
# How GPT-2 cuts text before merging bytes (from its published encoder.py): contractions, then words,
# numbers and other signs with the space before them, then what remains of white space.
GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Tokenizer:
    """A vocabulary: name, n_vocab, eot (end-of-text id) and table, the bytes of each token by id.

    Text that looks like a special token is encoded as ordinary text.
    """

    def __init__(self, name, table, eot):
        self.name, self.table, self.eot = name, table, eot
        self._encoding = None

    @property
    def n_vocab(self):
        return len(self.table)

    def encode(self, text):
        """Token ids of a string, uint32 (n,). No end-of-text is added."""
        return np.asarray(self.encoding.encode_to_numpy(text, disallowed_special=()), np.uint32)

    @property
    def encoding(self):
        """The tiktoken.Encoding of this vocabulary. Raises Unavailable for a table that can only decode."""
        if self._encoding is None:
            self._encoding = _build_encoding(self)
        return self._encoding

    def encode_bytes(self, raw):
        """Token ids of UTF-8 bytes, uint32 (n,); the vocabulary "bytes" takes any bytes.

        Raises UnicodeDecodeError with the position of what is no UTF-8.
        """
        # A byte is its own id, so this is what the encoding would give, text or not.
        if self.name == "bytes":
            return np.frombuffer(raw, np.uint8).astype(np.uint32)
        return self.encode(str(raw, "utf-8"))

    def decode_bytes(self, ids):
        """The bytes of a sequence of ids. Raises InvalidArgument for an id outside the vocabulary."""
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids):
        """The text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, token):
        """The bytes of one token."""
        if not 0 <= token < len(self.table):
            raise InvalidArgument(f"token id {token} is outside the {self.name} vocabulary of {self.n_vocab}")
        return self.table[token]

    def byte_lengths(self):
        """Bytes of each token, int64 (n_vocab,): what bits per byte divides by."""
        return np.fromiter(map(len, self.table), np.int64, len(self.table))


class StreamDecoder:
    """Text of tokens that come one at a time. Only whole characters are handed out.

    The parts, with the last from `finish()`, join to the text of Tokenizer.decode of all ids.
    """

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token):
        """The characters that this token completes; often one word, sometimes nothing."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self):
        """What is left at the end: "" or U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer(name_or_path):
    """The Tokenizer "gpt2", "bytes" (256 bytes and end-of-text: 257 ids), or that of an llm.c tokenizer file.

    Raises Unavailable when GPT-2's vocabulary is neither cached nor to be had from the network,
    InvalidArgument for an unknown name, FormatError for a damaged file.
    """
    if name_or_path == "gpt2":
        encoding = _cached_gpt2()
        table = [encoding.decode_single_token_bytes(token) for token in range(encoding.n_vocab)]
        return Tokenizer("gpt2", table, encoding.eot_token)
    if name_or_path == "bytes":
        return Tokenizer("bytes", [bytes([byte]) for byte in range(256)] + [END_OF_TEXT], 256)
    path = os.fspath(name_or_path)
    if not os.path.exists(path) and os.path.basename(path) == path and "." not in path:
        raise InvalidArgument(f"unknown tokenizer {path!r}: {nearest(path, NAMES)}, or a tokenizer file")
    return Tokenizer(path, *read_tokenizer_file(path))


def _cached_gpt2():
    try:
        import tiktoken

        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # whatever the import, the cache or the network has raised
        raise Unavailable(
            f"the GPT-2 vocabulary could not be loaded ({type(error).__name__}): set TIKTOKEN_CACHE_DIR "
            "to a folder that holds it, load it once with network access, name a gpt2_tokenizer.bin, or "
            'use "bytes"'
        ) from error


def _build_encoding(tokenizer):
    """tiktoken's encoder for a table of token bytes; an id is also its rank among the merges."""
    ranks = {text: token for token, text in enumerate(tokenizer.table) if token != tokenizer.eot}
    if len(ranks) != tokenizer.n_vocab - 1 or not all(bytes([byte]) in ranks for byte in range(256)):
        raise Unavailable(f"{tokenizer.name} can only decode: it lacks single bytes or repeats a token")
    try:
        import tiktoken
    except ImportError as error:
        raise Unavailable("encoding text needs the package tiktoken: pip install tiktoken") from error
    return tiktoken.Encoding(
        tokenizer.name, pat_str=GPT2_SPLIT, mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT.decode(): tokenizer.eot},
    )  # fmt: skip

"""A vocabulary as Hugging Face's GPT2Tokenizer reads it: vocab.json, merges.txt, tokenizer_config.json."""

import itertools
import json
from pathlib import Path

from .errors import FormatError, InvalidArgument
from .hf_config import as_json
from .tokenizer import END_OF_TEXT

FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


def copied_files(folder):
    """{file name: bytes} of the tokenizer files that a folder has; none is fine."""
    return {name: (Path(folder) / name).read_bytes() for name in FILES if (Path(folder) / name).is_file()}


def tokenizer_files(tokenizer, config):
    """{file name: bytes} for a Tokenizer and the model it serves. Raises InvalidArgument if it has more tokens."""
    if tokenizer.n_vocab > config.vocab:
        raise InvalidArgument(
            f"the tokenizer {tokenizer.name} has {tokenizer.n_vocab} tokens, expected at most the model's {config.vocab}"
        )
    special = END_OF_TEXT.decode()
    vocab = {spelled(text): token for token, text in enumerate(tokenizer.table)}
    del vocab[spelled(tokenizer.table[tokenizer.eot])]
    vocab[special] = tokenizer.eot
    if len(vocab) != tokenizer.n_vocab:
        raise InvalidArgument(f"the tokenizer {tokenizer.name} has a token twice, expected each once")
    lines = ["#version: 0.2", *(" ".join(map(spelled, pair)) for pair in merges(tokenizer))]
    about = {
        "tokenizer_class": "GPT2Tokenizer", "model_max_length": config.context, "add_prefix_space": False,
        "bos_token": special, "eos_token": special, "unk_token": special,
    }  # fmt: skip
    return {
        "vocab.json": json.dumps(vocab, ensure_ascii=False).encode(),
        "merges.txt": ("\n".join(lines) + "\n").encode(),
        "tokenizer_config.json": as_json(about),
    }


def letters():
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the others for U+0100 and on, so that no
    token holds white space."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


LETTERS = letters()


def spelled(text):
    return "".join(LETTERS[byte] for byte in text)


def merges(tokenizer):
    """Yield the (left, right) bytes that each token was merged from, in the order of the ids, which is that of merging.

    A token's pair is what is left of its bytes when all earlier merges have been made.
    """
    rank = {}
    for token, text in enumerate(tokenizer.table):
        if token == tokenizer.eot:
            continue
        if len(text) > 1:
            parts = [text[i : i + 1] for i in range(len(text))]
            while len(parts) > 2:
                pairs = [rank.get(a + b, len(rank)) for a, b in itertools.pairwise(parts)]
                at = min(range(len(pairs)), key=pairs.__getitem__)
                if pairs[at] == len(rank):
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            if len(parts) != 2 or any(part not in rank for part in parts):
                raise FormatError(f"the tokenizer {tokenizer.name}: token {token} ({text!r}) is no merge of earlier ones")
            yield tuple(parts)
        rank[text] = len(rank)

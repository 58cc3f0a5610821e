"""The vocabulary of a Hugging Face folder, read back into a Tokenizer: byte-level BPE as GPT-2's, of any size."""

from pathlib import Path

from .errors import FormatError, Unavailable
from .hf_config import read_json, special_ids
from .hf_tokenizer import LETTERS, merges
from .tokenizer import END_OF_TEXT, Tokenizer

VOCABULARY, MERGES, BOTH = "vocab.json", "merges.txt", "tokenizer.json"
BYTE_OF = {letter: byte for byte, letter in enumerate(LETTERS)}


class FolderTokenizer(Tokenizer):
    """A Tokenizer whose folder says by which merges text is encoded: where the order of the ids would give others, it
    can only decode."""

    def __init__(self, name, table, eot, pairs, problem=None):
        super().__init__(name, table, eot)
        self._pairs, self._problem = pairs, problem

    @property
    def encoding(self):
        if self._encoding is None and (self._problem or not self._in_order()):
            reason = self._problem or "its merges are not in the order of its ids"
            raise Unavailable(f"the tokenizer in {self.name} can only decode: {reason}")
        return super().encoding

    def _in_order(self):
        try:
            return list(merges(self)) == self._pairs
        except FormatError:  # an added token, which no merge gives
            return False


def has_vocabulary(folder):
    return any((Path(folder) / name).is_file() for name in (VOCABULARY, BOTH))


def read_vocabulary(folder):
    """The Tokenizer in a folder, which has_vocabulary.

    Raises FormatError for a damaged file, Unavailable for a vocabulary of another kind.
    """
    folder = Path(folder)
    whole = read_json(folder / BOTH) if (folder / BOTH).is_file() else {}
    if (folder / VOCABULARY).is_file():
        path, ids = folder / VOCABULARY, dict(read_json(folder / VOCABULARY))
        lines = (folder / MERGES).read_text(encoding="utf-8").splitlines() if (folder / MERGES).is_file() else []
        lines = [line for line in lines if not line.startswith("#version")]
    else:
        path, model = folder / BOTH, whole.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
            raise Unavailable(f"{path}: not byte-level BPE as GPT-2's, which is all that can be read")
        ids, lines = dict(model.get("vocab") or {}), model.get("merges") or []
    added = added_tokens(folder, whole)
    ids |= added
    if sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str) or not ids:
        raise Unavailable(f"{path}: {len(ids)} tokens whose ids are not 0 to {len(ids) - 1}")
    table = [b""] * len(ids)
    for text, token in ids.items():
        table[token] = text.encode() if text in added else bytes_of(text, path)
    eot = ids.get(end_name(folder), special_ids(folder)[1])
    eot = ids.get(END_OF_TEXT.decode(), len(table) - 1) if eot is None or eot >= len(table) else eot
    pairs = [tuple(bytes_of(part, path) for part in (line.split(" ") if isinstance(line, str) else line)) for line in lines if line]
    return FolderTokenizer(str(folder), table, eot, pairs, other_splitting(whole))


def added_tokens(folder, whole):
    """{text: id} of the tokens that stand for themselves."""
    path = folder / "added_tokens.json"
    listed = {row["content"]: row["id"] for row in whole.get("added_tokens", ())}
    return listed | (read_json(path) if path.is_file() else {})


def bytes_of(text, path):
    """The bytes that a token's letters stand for; other letters are text itself, as in special tokens."""
    if not isinstance(text, str):
        raise FormatError(f"{path}: {text!r:.40} among the tokens, expected texts")
    return bytes(BYTE_OF[letter] for letter in text) if all(letter in BYTE_OF for letter in text) else text.encode()


def end_name(folder):
    """The text of the end-of-text token, None where no file says it."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        said = read_json(folder / name).get("eos_token") if (folder / name).is_file() else None
        if said:
            return said["content"] if isinstance(said, dict) else said
    return None


def other_splitting(whole):
    """Why text is not cut into words as GPT-2 cuts it; None if it is."""
    if not whole:
        return None
    cut = whole.get("pre_tokenizer") or {}
    plain = cut.get("type") == "ByteLevel" and not cut.get("add_prefix_space") and cut.get("use_regex", True)
    return None if plain and not whole.get("normalizer") else f"{BOTH} cuts text otherwise than GPT-2's"

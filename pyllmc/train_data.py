"""What a command line trains on: token shards or text, and the vocabulary that goes with them."""

from dataclasses import dataclass

from . import corpus, run_state, rundir
from .callbacks import Callbacks
from .checkpoint import peek_checkpoint
from .errors import InvalidArgument, Unavailable
from .named_model import names_weights
from .shards import find_shards, open_shard
from .tokenizer import load_tokenizer
from .tokenizer_file import MAX_LENGTH, write_tokenizer_file
from .vocabulary import guess_tokenizer, tokenizer_beside
from .weights import find_weights

ENTROPY_TOKENS = 1 << 20  # how much of the data the unigram entropy is taken from


@dataclass(frozen=True)
class Data:
    """Glob patterns of shards (val may be None), how to show their tokens (None: as ids), the vocabulary
    they need (None: unknown), a name for people, and why there is no tokenizer, where that is known."""

    train: str
    val: str | None
    tokenizer: object
    vocab: int | None
    label: str
    missing: str | None = None


def choose_data(args):
    """The Data that the arguments name; text is tokenized once and kept."""
    tokenizer, missing = (load_tokenizer(args.tokenizer), None) if args.tokenizer else own_tokenizer(args)
    if args.train is None:
        if args.val is not None:
            raise InvalidArgument("-j needs -i: token shards to train on")
        if missing:
            raise Unavailable(f"text for {args.model or args.output} needs its tokenizer (--tokenizer names one): {missing}")
        tokenizer = tokenizer or load_tokenizer("bytes")
        found = corpus.prepare(args.data, tokenizer)
        label = args.data or "Python's help topics"
        return Data(found.train, found.val, tokenizer, found.n_vocab, f"{label}, {tokenizer.name} tokens")
    if args.data is not None:
        raise InvalidArgument("--data (text) and -i (token shards) exclude each other")
    return Data(args.train, args.val, tokenizer, tokenizer and tokenizer.n_vocab, args.train, missing)


def own_tokenizer(args):
    """(Tokenizer of the weights to start or to go on from, or None; why they have none that can be used, or None).

    Text for weights of which only the number of ids is known is encoded as that tells.
    """
    step, path = None, None
    if args.resume:
        step, path, _ = run_state.find(args.output, args.resume_weights_only)
    if step is not None:
        folder, vocab = args.output, peek_checkpoint(path)[0].vocab
    elif args.model is not None and names_weights(args.model):
        weights = find_weights(args.model)
        folder, vocab = weights.folder, weights.config.vocab
    else:
        return None, None
    try:
        found = tokenizer_beside(folder, vocab)
    except Unavailable as error:
        return None, str(error)
    if found is None and step is None and args.train is None:
        return guess_tokenizer(vocab)
    return found, None


class TokenizerKeeper(Callbacks):
    """Puts the vocabulary beside the first checkpoint: the run folder is then enough to generate text."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def on_checkpoint(self, step, path):
        if self._tokenizer is not None:
            write_tokenizer_file(path.parent / rundir.TOKENIZER, self._tokenizer.table, self._tokenizer.eot)
            self._tokenizer = None


def keepers(tokenizer):
    """A TokenizerKeeper in a list; none where the vocabulary isn't known, or is bytes, which its size tells, or has
    tokens too long for the file."""
    if tokenizer is None or tokenizer.name == "bytes" or max(map(len, tokenizer.table)) > MAX_LENGTH:
        return []
    return [TokenizerKeeper(tokenizer)]


def entropy_of(pattern):
    """Unigram entropy in nats of the beginning of the first shard."""
    with open_shard(find_shards(pattern)[0]) as shard:
        tokens = shard.read(0, min(shard.tokens, ENTROPY_TOKENS))
    return corpus.unigram_entropy(tokens) if tokens.size else None

"""python -m pyllmc: what the package's commands are."""

import sys

from .console import say, table
from .errors import InvalidArgument, nearest
from .exits import BAD_INPUT, status_of

COMMANDS = {
    "train": "train a GPT-2, without arguments a small one for about a minute",
    "generate": "draw text from a model",
    "evaluate": "loss, bits per byte and HellaSwag's accuracy of a model",
    "data": "make token shards of texts, and look into llm.c's files",
    "convert": "Hugging Face folders to llm.c's checkpoints, and back",
    "plot": "draw what runs have logged",
    "ab": "compare step times of two settings, or of another trainer",
    "profile": "where a step's time and memory go",
}


def main(argv=None):
    """List the commands; returns the exit status: 2 where something else was asked for."""
    words = sys.argv[1:] if argv is None else list(argv)
    return status_of("pyllmc", lambda: act(words), "interrupted")


def act(words):
    if words and words[0] not in ("-h", "--help"):
        name = words[0]
        hint = f"say python -m pyllmc.{name}" if name in COMMANDS else nearest(name, COMMANDS)
        raise InvalidArgument(f"a command's name follows pyllmc after a dot: got {name!r}: {hint}")
    say(table([(f"  python -m pyllmc.{name}", text) for name, text in COMMANDS.items()]))
    say("\n--help after one of them lists its options.")
    return 0 if words else BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())

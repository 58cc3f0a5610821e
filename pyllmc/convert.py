"""Checkpoints from one format to another: python -m pyllmc.convert SOURCE TARGET"""

import sys
import zipfile
from pathlib import Path

from tqdm import tqdm

from .checkpoint import lazy_checkpoint, write_checkpoint
from .cli import Option, Parser
from .console import has_size, one_line, say
from .errors import InvalidArgument, nearest
from .exits import status_of
from .hf import check_target, read_pretrained, write_pretrained
from .hf_config import CONFIG
from .hf_tokenizer import copied_files
from .lazy import Row, Source, Watched
from .nanogpt import read_state_dict
from .state_dict import BLOCK, LINEAR, TOP
from .torch_file import OLD_PICKLE
from .vocabulary import guess_tokenizer, tokenizer_beside
from .weights import find_weights

HINT = "--force replaces it"
DTYPES = ("keep", "fp32", "bf16")
DESCRIPTION = """Convert a GPT-2 between Hugging Face folders (safetensors), llm.c checkpoints and, as sources, run folders (their
latest checkpoint) and nanoGPT's .pt files. The source is recognised by its content; a target that ends in .bin is an llm.c
checkpoint, any other a Hugging Face folder. Neither torch nor transformers is needed, and no code in the source is run.
The target appears complete or not at all. Exit status: 0 done; 2 bad input; 130 interrupted; 141 nobody reads the
output."""


def dtype_word(text):
    if text not in DTYPES:
        raise InvalidArgument(f"unknown dtype {text!r}, {nearest(text, DTYPES)}")
    return text


GROUPS = {
    "what": (
        Option("paths", "", "what to convert and where to, two paths", metavar="PATH"),
        Option("dtype", "--dtype", "fp32, bf16 (rounded to nearest even), or keep, which changes no weight: fp16 is kept as "
               "fp32", dtype_word, "keep", metavar="NAME"),
        Option("heads", "--heads", "attention heads, for a bare state dict, which doesn't tell them", int),
    ),
    "output": (
        Option("tokenizer", "--tokenizer", "for a Hugging Face folder, the tokenizer whose files it gets: gpt2, bytes, an llm.c "
               "tokenizer file, or a folder that has them", metavar="NAME", decided_by="the source's, if it is a folder"),
        Option("force", "--force", "replace the target, if it exists", switch=True),
    ),
}  # fmt: skip


def main(argv=None):
    """Convert as the arguments say; returns the exit status."""
    parser = Parser(GROUPS, prog="python -m pyllmc.convert", description=DESCRIPTION)
    return status_of(
        "pyllmc.convert", lambda: convert(parser.read(argv)), "interrupted; the target is as it was, or complete",
        "nobody reads the output; the target is written",
    )  # fmt: skip


def convert(args):
    """Read, write, then say what went where. Raises LlmcError or OSError for what can't be."""
    if len(args.paths) != 2:
        raise InvalidArgument(f"expected two paths, SOURCE and TARGET, got {len(args.paths)}")
    path, target = map(Path, args.paths)
    to_folder = target.suffix != ".bin"
    check_output(target, to_folder, args)
    source = read_source(path, args.heads)
    dtype = source.dtype if args.dtype == "keep" else args.dtype
    notes = list(source.notes)
    with tqdm(total=source.config.num_params, unit=" parameters", unit_scale=True, leave=False, desc=target.name,
              dynamic_ncols=True, disable=not has_size(sys.stderr)) as bar:  # fmt: skip
        params = Watched(source.params, bar.update)
        if to_folder:
            tokenizer = args.tokenizer or own_tokenizer(path, source.config.vocab)
            if tokenizer is None:
                notes.append("no tokenizer files were written: --tokenizer names a vocabulary, such as gpt2")
            write_pretrained(target, source.config, params, dtype, tokenizer=tokenizer, force=args.force)
        else:
            write_checkpoint(target, source.config, params, dtype)
    report(source, path, target, "Hugging Face folder" if to_folder else "llm.c checkpoint", dtype, notes)
    return 0


def check_output(target, to_folder, args):
    if to_folder:
        if target.suffix in (".pt", ".pth", ".safetensors", ".h5", ".gguf"):
            raise InvalidArgument(f"{target}: can't write {target.suffix}; expected a folder, or a name that ends in .bin")
        if target.is_file() or not args.force and target.is_dir() and any(target.iterdir()):
            raise InvalidArgument(f"{target}: exists already; " + ("expected a folder" if target.is_file() else HINT))
        check_target(target, args.force)
        return
    if args.tokenizer is not None:
        raise InvalidArgument(f"--tokenizer is for a Hugging Face folder, and {target} is an llm.c checkpoint")
    if target.is_dir():
        raise InvalidArgument(f"{target}: is a folder, expected a file name for the llm.c checkpoint")
    if target.exists() and not args.force:
        raise InvalidArgument(f"{target}: exists already; {HINT}")
    if not target.absolute().parent.is_dir():
        raise InvalidArgument(f"{target}: the folder {target.absolute().parent} does not exist")


def read_source(path, heads=None):
    """The Source at `path`, whichever format it has. Raises FormatError, InvalidArgument or OSError."""
    weights = find_weights(path) if path.is_dir() else None
    if weights and weights.path.is_dir():
        source = read_pretrained(path)
    elif path.suffix == ".safetensors" and path.is_file():
        raise InvalidArgument(f"{path}: weights alone; expected the folder that has {CONFIG} beside them")
    elif weights is None and (zipfile.is_zipfile(path) or begins_with(path, OLD_PICKLE)):
        return read_state_dict(path, heads)
    else:
        file, notes = (weights.path, list(weights.notes)) if weights else (path, [])
        config, dtype, params = lazy_checkpoint(file)
        kind = f"checkpoint {file.name} in" if weights else "llm.c checkpoint"
        source = Source(kind, config, dtype, params, list(checkpoint_rows(config, dtype)), notes)
    if heads not in (None, source.config.heads):
        raise InvalidArgument(f"{heads} heads were given, {path} says {source.config.heads}")
    return source


def own_tokenizer(path, vocab):
    """The tokenizer of the source for a folder of `vocab` ids: a folder to copy it from, a Tokenizer, or None.

    Of a run it is what it was trained with, else what the number of ids tells."""
    if not path.is_dir():
        return None
    if copied_files(path):
        return path
    tokenizer = None if (path / CONFIG).is_file() else tokenizer_beside(path, vocab) or guess_tokenizer(vocab)[0]
    return tokenizer if tokenizer and tokenizer.n_vocab <= vocab else None


def begins_with(path, text):
    with open(path, "rb") as file:
        return file.read(len(text)) == text


def checkpoint_rows(config, dtype):
    """Yield where each tensor of an llm.c checkpoint goes under Hugging Face's names."""
    for name, shape in config.shapes().items():
        if name in TOP:
            where = TOP[name] + (f", rows 0 to {config.vocab - 1}" if name == "wte" else "")
        else:
            where = f"h.0 to {config.layers - 1}.{BLOCK[name]}" + (", transposed" if name in LINEAR else "")
        yield Row(name, shape, dtype, where)


def report(source, path, target, kind, dtype, notes):
    """Every tensor with its shape, dtype and place, and a closing word."""
    cells = [("tensor", "shape", "dtype", "where it went")]
    cells += [(one_line(row.name), "x".join(map(str, row.shape)), row.dtype, row.where) for row in source.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    for row in cells:
        say("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
    for note in notes:
        say(f"note: {note}")
    config = source.config
    say(f"{source.kind} {path}: {source.dtype}, {config.layers} layers, {config.heads} heads, {config.channels} channels, "
        f"vocabulary {config.vocab}, context {config.context}")
    say(f"{kind} {target}: {dtype}")


if __name__ == "__main__":
    sys.exit(main())

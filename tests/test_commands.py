"""python -m pyllmc: the list of the commands."""

from pathlib import Path

import pytest

import pyllmc
from pyllmc import __main__ as commands


def test_it_lists_every_command_and_no_other(capsys):
    """A command is a module with a main() that takes arguments, or a package with a __main__."""
    folder = Path(pyllmc.__file__).parent
    alone = {path.stem for path in folder.glob("*.py") if "\nif __name__ == " in path.read_text()} - {"__main__"}
    assert set(commands.COMMANDS) == alone | {path.parent.name for path in folder.glob("*/__main__.py")}
    for words, status in (([], 2), (["--help"], 0)):
        assert commands.main(words) == status
        said = capsys.readouterr()
        assert said.err == "" and all(said.out.count(f"python -m pyllmc.{name} ") == 1 for name in commands.COMMANDS)


@pytest.mark.parametrize("word, hint", [("train", "say python -m pyllmc.train"), ("trian", "did you mean 'train'?")])
def test_a_command_after_a_blank(capsys, word, hint):
    assert commands.main([word, "--data", "x"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and hint in said.err

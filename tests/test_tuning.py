"""What tuning found is kept for the next process, and never stands in the way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyllmc import _native, tuning
from pyllmc.errors import InvalidArgument


class Engine:
    """Stands in for a library: takes lines that begin with "ok", exports what it was given and has found."""

    backend = "cuda"

    def __init__(self, path="a.so"):
        self.path, self.found = Path(path), []

    def call(self, verb, text):
        assert verb == "llmc_tuning_import"
        lines = text.decode().splitlines()
        if not all(line.startswith("ok") for line in lines):
            raise InvalidArgument("line 1 of the text")
        self.found += lines

    def text(self, verb):
        assert verb == "llmc_tuning_export"
        return "".join(f"{line}\n" for line in self.found)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_told", {})
    return tmp_path / "cache"


def next_process():
    tuning._told.clear()


def test_a_later_process_gets_what_an_earlier_one_found(cache):
    engine = Engine()
    tuning.recall(engine)
    engine.found.append("ok 1")
    tuning.keep(engine)
    assert (cache / "tuning-cuda.txt").read_text() == "ok 1\n"
    next_process()
    engine = Engine()
    tuning.recall(engine)
    tuning.recall(engine)  # once in a process
    assert engine.found == ["ok 1"]
    before = (cache / "tuning-cuda.txt").stat().st_mtime_ns
    tuning.keep(engine)  # nothing new, nothing written
    assert (cache / "tuning-cuda.txt").stat().st_mtime_ns == before
    engine.found.append("ok 2")
    tuning.keep(engine)
    assert (cache / "tuning-cuda.txt").read_text() == "ok 1\nok 2\n"


@pytest.mark.parametrize("text", [b"who knows\n", b"\xff\xfe", b"ok\nbad\n"])
def test_a_file_that_is_none_is_passed_over_and_replaced(cache, text):
    cache.mkdir()
    (cache / "tuning-cuda.txt").write_bytes(text)
    engine = Engine()
    tuning.recall(engine)
    assert engine.found == []
    engine.found.append("ok")
    tuning.keep(engine)
    assert (cache / "tuning-cuda.txt").read_text() == "ok\n"


def test_a_cache_folder_that_can_not_be_made(cache):
    cache.write_text("a file stands there")
    engine = Engine()
    tuning.recall(engine)
    engine.found.append("ok")
    tuning.keep(engine)
    assert cache.read_text() == "a file stands there"


CREATE = """
import json, sys
from pyllmc import GPT2, GPT2Config
with GPT2.from_config(GPT2Config(2, 2, 128, 500, 64), batch=4, seq_len=64, device="cuda", precision="bf16") as model:
    print(json.dumps(model.library.text("llmc_tuning_export")))
"""


@pytest.mark.gpu
def test_an_engine_takes_its_own_findings_back(cache, cuda):
    texts = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", CREATE], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[1])
        assert done.returncode == 0, done.stderr
        texts.append(json.loads(done.stdout.splitlines()[-1]))
    assert texts[0] == texts[1] == (cache / "tuning-cuda.txt").read_text() and len(texts[0].splitlines()) > 15
    library = _native.choose(cuda)[0]
    for text, line in (("nonsense", 1), (texts[0] + "x\t0\tabc\n", len(texts[0].splitlines()) + 1)):
        with pytest.raises(InvalidArgument, match=f"line {line} of the text"):
            library.call("llmc_tuning_import", text.encode())

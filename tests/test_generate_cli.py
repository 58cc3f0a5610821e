"""python -m pyllmc.generate: where weights and prompts come from, what is shown, and how it ends."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from test_native import run_python

from pyllmc import GPT2, GPT2Config, _find, generate, rundir, train, weights
from pyllmc import tokenizer as tokenizers
from pyllmc.cli import Parser
from pyllmc.console import count, harmless
from pyllmc.errors import Unavailable
from pyllmc.generate_options import GROUPS, MAX_SEED
from pyllmc.sample_text import Sample
from pyllmc.tokenizer_file import write_tokenizer_file

LINE = "naïve 🙂 日本 φ∀x.\n"
GREEDY = ["--temperature", 0]
# Rows of 49 tokens begin at every place of a line of 27 bytes: what the model learns depends on no position.
SHAPE = "--layers 2 --heads 2 --channels 48 -b 4 -t 49 -u 10 -v 0 -s 0 --no-plot --device cpu".split()
ROWS = [row for group in GROUPS.values() for row in group]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder whose model knows one line by heart, at any place of its context."""
    home = tmp_path_factory.mktemp("generate")
    (home / "text.txt").write_text(LINE * 200, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYLLMC_CACHE", str(home / "cache"))
        words = ["--data", home / "text.txt", *SHAPE, "-x", 400, "-l", 5e-3, "-n", 200, "-o", home / "run"]
        assert train.main(list(map(str, words))) == 0
    return home / "run"


@pytest.fixture
def no_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.fixture
def call(capfdbinary, no_stdin):
    """A function: (exit status, stdout, stderr) of the command, in this process; output as strict UTF-8."""

    def run_command(*argv, stdin=None):
        if stdin is not None:
            sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
        sys.stdout.flush()
        capfdbinary.readouterr()  # what came before is not the command's
        try:
            status = generate.main(list(map(str, argv if "--device" in argv else (*argv, "--device", "cpu"))))
        except SystemExit as ended:  # argparse
            status = ended.code
        sys.stdout.flush()
        return status, *(part.decode("utf-8") for part in capfdbinary.readouterr())

    return run_command


@pytest.fixture
def no_gpt2(monkeypatch):
    def absent():
        raise Unavailable("the GPT-2 vocabulary could not be loaded: name a gpt2_tokenizer.bin")

    monkeypatch.setattr(tokenizers, "_cached_gpt2", absent)


def random_model(path, **changes):
    config = GPT2Config(**{"layers": 1, "heads": 2, "channels": 16, "vocab": 257, "context": 32, **changes})
    with GPT2.from_config(config, batch=1, seq_len=8, device="cpu") as model:
        model.save(path)
    return path


def expected(prompt, n):
    """The text in the `n` bytes that follow the prompt in the line said for ever, its whole characters."""
    said = (LINE * (2 + n // 10)).encode()
    start = said.index(prompt.encode()) + len(prompt.encode())
    return said[start : start + n].decode("utf-8", "ignore")


# -- weights and prompts


def test_a_run_and_its_checkpoint_say_what_they_learnt(run, call):
    """Also far past the context of 49."""
    prompt, n = LINE + "na", 200
    for model in (run, run / "model_00000400.bin"):
        status, out, err = call(model, prompt, "-n", n, *GREEDY)
        assert status == 0 and out.removesuffix("\n") == expected(prompt, n).removesuffix("\n")
        assert re.fullmatch(
            r"model_00000400.bin: .*k parameters on cpu, tokenizer bytes, prompt of 29 tokens\n"
            r"200 tokens, .* s for the prompt and the first, .* s for the others: .* tok/s after the first\n", err,
        )  # fmt: skip


def test_every_device_says_it(run, call, backend):
    """A context of 49 is a shape that no kernel likes; two samples are two rows."""
    words = [run, LINE, "-n", 200, "--samples", 2, "--device", backend, "-q", "--json", *GREEDY]
    status, out, err = call(*words)
    assert (status, err) == (0, "")
    assert [sample["text"] for sample in json.loads(out.splitlines()[-1])["samples"]] == [expected(LINE, 200)] * 2


def test_every_way_to_give_a_prompt(run, call, tmp_path, monkeypatch):
    (tmp_path / "p.txt").write_text(LINE, encoding="utf-8")  # of which the line break is left out
    ways = [(["naïve 🙂 日本 φ∀x."], None), (["-p", tmp_path / "p.txt"], None), (["-p", "-"], LINE.encode()),
            ([], LINE.encode()), ([], LINE.rstrip("\n").encode() + b"\r\n")]  # fmt: skip
    results = [call(run, *words, "-n", 8, "-q", *GREEDY, stdin=stdin) for words, stdin in ways]
    assert results == [(0, "\nnaïve \n", "")] * 5
    assert call(run, "", "-n", 1, "-q", "--json")[1].splitlines()[-1].startswith('{"prompt_ids": [256]')
    monkeypatch.setattr(sys, "stdin", None)  # as in a service
    assert '{"prompt_ids": [256]' in call(run, "-n", 1, "-q", "--json")[1]


def test_a_newer_checkpoint_that_is_incomplete_is_passed_over(run, call, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / rundir.state_name(400)).unlink()
    status, _, err = call(copy, "na", "-n", 3)
    assert status == 0 and "note: " in err and "DONE_00000400 passed over" in err
    assert "model_00000200.bin: " in err
    for marker in copy.glob("DONE_*"):
        marker.unlink()
    assert "model_00000400.bin: " in call(copy, "na", "-n", 3)[2]  # weights alone will do


def test_a_hugging_face_folder(call, tmp_path):
    path = random_model(tmp_path / "m.bin")
    with GPT2.from_checkpoint(path, batch=1, seq_len=8, device="cpu") as model:
        model.save_pretrained(tmp_path / "hf")
    assert call(tmp_path / "hf", "ab", "-n", 40, "-q") == call(path, "ab", "-n", 40, "-q")
    described = json.loads((tmp_path / "hf" / "config.json").read_text())
    for text, part in (("{", "not JSON"), ("[]", "expected an object"), ("{}", "model_type is None"),
                       (json.dumps({**described, "n_head": 3}), "divisible"),
                       (json.dumps({**described, "n_embd": "x"}), "channels")):  # fmt: skip
        (tmp_path / "hf" / "config.json").write_text(text)
        status, _, err = call(tmp_path / "hf", "ab")
        assert status == 2 and part in err and "config.json" in err and err.count("\n") == 1


def test_a_run_with_a_vocabulary_of_its_own_keeps_it(call, tmp_path, monkeypatch):
    """TOK-07: found by its place beside the weights, from any folder."""
    monkeypatch.setenv("PYLLMC_CACHE", str(tmp_path / "cache"))
    table = [bytes([byte]) for byte in range(256)] + [b"<|endoftext|>", b"th", b"the"]
    write_tokenizer_file(tmp_path / "own.bin", table, 256)
    (tmp_path / "text.txt").write_text("the other " * 900)
    words = ["--data", tmp_path / "text.txt", "--tokenizer", tmp_path / "own.bin", *SHAPE, "-x", 2, "-o", tmp_path / "r"]
    assert train.main(list(map(str, words))) == 0
    (tmp_path / "own.bin").unlink()
    monkeypatch.chdir("/")
    status, out, err = call(tmp_path / "r", "the", "-n", 2, "--json")
    assert status == 0 and "tokenizer.bin, prompt of 1 token\n" in err
    assert json.loads(out.splitlines()[-1])["prompt_ids"] == [258]


# -- without a tokenizer (TOK-03)


def test_ids_when_no_tokenizer_can_be_had(call, tmp_path, no_gpt2):
    path = random_model(tmp_path / "m.bin", vocab=50257, channels=4)
    status, out, err = call(path, "464 2068", "-n", 5)
    assert status == 0 and re.fullmatch(r"(\d+ ){4}\d+\n", out)
    assert "note: ids are shown for tokens: the GPT-2 vocabulary could not be loaded: name a gpt2_tokenizer.bin\n" in err
    status, out, err = call(path, "The quick", "-n", 5, "--json", "--stop", "1")
    assert status == 0 and json.loads(out.splitlines()[-1])["prompt_ids"] == [50256]
    assert "the prompt can't be encoded without a tokenizer: it is left out" in err and "--stop texts are not" in err
    status, out, err = call(path, "464 2068", "-n", 3, "--echo", "-q", "--tokenizer", "ids")
    assert status == 0 and err == "" and re.fullmatch(r"464 2068 \d+ \d+ \d+\n", out)
    for words, part in ((["The quick"], "the prompt: expected ids from 0 to 50256, got 'The'"),
                        (["1", "--stop", "x"], "--stop-id takes a token")):  # fmt: skip
        status, out, err = call(path, *words, "--tokenizer", "ids")
        assert (status, out) == (2, "") and part in err and err.count("\n") == 1
    status, out, err = call(path, "1", "--tokenizer", "gpt2")
    assert status == 2 and "could not be loaded" in err


# -- what is shown


def test_pieces_are_whole_characters_and_shown_at_once(run, no_stdin, monkeypatch):
    """TOK-01: each write is text by itself, and all of them are the text of all ids."""
    written = []

    class Recorder(io.RawIOBase):
        def writable(self):
            return True

        def write(self, raw):
            written.append(bytes(raw))
            return len(raw)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Recorder()), encoding="utf-8"))
    assert generate.main([str(run), LINE, "-n", "110", "--temperature", "0", "--device", "cpu", "-q"]) == 0
    pieces = [raw.decode("utf-8") for raw in written]  # strict
    text = expected(LINE, 110)
    assert "".join(pieces).rstrip("\n") == text.rstrip("\n")
    assert len(pieces) >= len(text) and max(map(len, pieces)) == 1


def test_a_stop_is_not_shown_nor_any_part(run, call):
    status, out, _ = call(run, "na", "-n", 60, "--stop", "本 φ", "--stop", "never", "--json", *GREEDY)
    shown, last = out.rsplit("\n", 2)[:2]
    assert status == 0 and shown == "ïve 🙂 日"
    sample = json.loads(last)["samples"][0]
    assert (sample["text"], sample["ended_by"], sample["stop"]) == ("ïve 🙂 日", "stop", "本 φ")
    assert bytes(sample["ids"]).decode() == "ïve 🙂 日本 φ"
    found = call(run, "na", "-n", 60, "--stop-id", ord("v"), "--stop-id", 1, "--json", *GREEDY)[1]
    sample = json.loads(found.splitlines()[-1])["samples"][0]
    assert (sample["text"], sample["ended_by"], sample["stop"]) == ("ï", "stop_id", None)


def test_the_end_of_text_ends_it(call, tmp_path):
    path = tmp_path / "m.bin"
    config = GPT2Config(layers=1, heads=1, channels=8, vocab=257, context=32)
    with GPT2.from_config(config, batch=1, seq_len=8, device="cpu") as model:
        model.params["lnfw"], model.params["lnfb"] = np.zeros(8, np.float32), np.ones(8, np.float32)
        table = np.zeros(model.param_shapes["wte"], np.float32)
        table[256] = 1  # always the likeliest
        model.params["wte"] = table
        model.save(path)
    status, out, _ = call(path, "ab", "-n", 3, "--json", "-q", *GREEDY)
    sample = json.loads(out)["samples"][0]
    assert (sample["ids"], sample["ended_by"]) == ([], "end_of_text")
    status, out, _ = call(path, "ab", "-n", 2, "--past-end", "--echo", "-q", *GREEDY)
    assert (status, out) == (0, "ab<|endoftext|><|endoftext|>\n")


def test_samples_are_told_apart_and_are_those_of_their_seeds(run, call, monkeypatch):
    monkeypatch.setattr(weights, "MAX_ROWS", 2)  # three samples are two groups
    words = ["na", "-n", 30, "--temperature", 2.5, "--json", "-q"]
    out = call(run, *words, "--samples", 3, "--seed", 7, "--echo")[1]
    together = json.loads(out.splitlines()[-1])["samples"]
    shown = "\n".join(
        f"--- sample {i + 1} of 3, seed {7 + i} ---\nna{sample['text']}" + "\n" * (not sample["text"].endswith("\n"))
        for i, sample in enumerate(together)
    )
    assert out.startswith(shown) and [sample["seed"] for sample in together] == [7, 8, 9]
    for sample in together:
        alone = json.loads(call(run, *words, "--seed", sample["seed"])[1].splitlines()[-1])["samples"]
        assert alone == [sample]
    assert len({sample["text"] for sample in together}) == 3


def test_as_many_side_by_side_as_fit(monkeypatch):
    config = GPT2Config(1, 1, 8, 257, 32)
    where = {"seq_len": 32, "device": "cpu"}
    assert [weights.rows_that_fit(config, where, samples) for samples in (1, 5, 100)] == [1, 5, weights.MAX_ROWS]
    real = GPT2.memory_plan

    def scarce(*args, **given):
        plan = real(*args, **given)
        plan.device_free = real(*args, **{**given, "batch": 3}).total
        return plan

    monkeypatch.setattr(GPT2, "memory_plan", scarce)
    assert [weights.rows_that_fit(config, where, samples) for samples in (1, 3, 5, 100)] == [1, 3, 2, 2]


def test_json_has_it_all(run, call):
    status, out, err = call(run, "na", "-n", 20, "--json", "-q", "--echo")
    shown, last = out.rstrip("\n").rsplit("\n", 1)
    found = json.loads(last)
    (sample,) = found["samples"]
    assert (status, err) == (0, "") and found["prompt_ids"] == list(b"na")
    assert shown.rstrip("\n") == ("na" + sample["text"]).rstrip("\n")
    assert len(sample["ids"]) == 20 and sample["ended_by"] == "max_new" and sample["seed"] == 0
    assert all(found["timings"][name] > 0 for name in ("load_s", "prompt_s", "draw_s", "tok_s"))
    none = json.loads(call(run, "na", "-n", 0, "--json")[1])
    assert none["samples"][0]["ids"] == [] and none["timings"]["tok_s"] is None


def test_a_prompt_longer_than_the_context(run, call):
    status, out, err = call(run, LINE * 4, "-n", 20, *GREEDY)
    assert status == 0 and out.rstrip("\n") == expected(LINE, 20).rstrip("\n")
    assert "note: the prompt has 108 tokens, of which the model reads the last 49, its context" in err


def test_a_terminal_gets_no_control_characters():
    assert harmless("a\x1b[2J\r\x07\x9bb\n\tc 👩\u200d🚀") == "a·[2J···b\n\tc 👩\u200d🚀"


# -- what can't be


@pytest.mark.parametrize(
    "words, part",
    [(["none.bin"], "none.bin: no such file or folder"), (["gpt2"], "gpt2: no such file or folder: nothing is downloaded, so fetch"),
     (["."], r"holds no model: expected .* found bad.bin"), (["bad.bin"], "bad.bin"),
     (["RUN", "a", "b"], "2 words follow the model: a prompt of several words needs quotes"),
     (["RUN", "a", "-p", "x"], "exclude each other"), (["RUN", "-p", "none.txt"], "none.txt"), (["RUN", "-n", "-1"], "from 0 to"),
     (["RUN", "-n", "1.5"], "whole number"), (["RUN", "--temperature", "-1"], "0 or more"), (["RUN", "--temperature", "nan"], "0 or more"),
     (["RUN", "--top-k", "-2"], "whole number"), (["RUN", "--top-p", "0"], "above 0"), (["RUN", "--top-p", "1.1"], "up to 1"),
     (["RUN", "--seed", "-1"], "whole number"), (["RUN", "--seed", str(2**64)], "whole number"), (["RUN", "--samples", "0"], "from 1 to"),
     (["RUN", "--seed", str(MAX_SEED), "--samples", "2"], "leaves no seeds"), (["RUN", "--stop="], "at least one character"),
     (["RUN", "--tokenizer", "byts"], "did you mean 'bytes'"), (["RUN", "--tokenizer", "bad.bin"], "bad.bin: not a tokenizer"),
     (["RUN", "--temprature", "1"], "did you mean '--temperature'"), (["RUN", "--device", "gpu"], "auto, cpu, cuda"),
     (["RUN", "--precision", "fp8"], "fp32, bf16"), (["RUN", "--stop-id", "x"], "whole number"),
     (["RUN", "--stop-id", "1", "--stop-id", "257"], "--stop-id 257 is outside the model's vocabulary of 257"), ([], "required: MODEL")],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(run, call, tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.bin").write_bytes(b"x" * 2000)
    words = [run if word == "RUN" else word for word in words]
    status, out, err = call(*words)
    assert (status, out) == (2, ""), err
    assert re.search(part, err) and re.fullmatch(r"pyllmc\.generate: .+\n", err), err


def test_a_prompt_in_another_model_s_tokens(call, golden):
    status, out, err = call(golden / "tiny_fp32.bin", "Hello", "--tokenizer", golden / "gpt2_tokenizer.bin")
    wanted = "makes token 15496 of the prompt, beyond the model's vocabulary of 257: --tokenizer names the one it was trained with"
    assert (status, out) == (2, "") and err.endswith(f"{wanted}\n") and err.count("\n") == 1


def test_weights_that_are_no_numbers(call, tmp_path):
    """NUM-15: an error and not the last id for ever."""
    with GPT2.from_config(GPT2Config(1, 1, 8, 257, 16), batch=1, seq_len=8, device="cpu") as model:
        model.params["lnfb"] = np.full(8, np.nan, np.float32)
        model.save(tmp_path / "m.bin")
    status, out, err = call(tmp_path / "m.bin", "ab", "-q")
    assert (status, out) == (2, "") and re.fullmatch(r"pyllmc.generate: .*logit 0 of 257 is NaN\n", err)


# -- the parser is the help (CLI-05)


def test_help_is_the_table(capsys):
    parser = Parser(GROUPS, prog="generate", usage="x")
    text = re.sub(r"\s+", " ", parser.format_help())
    nothing = parser.read(["model"])
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.help[:20] in text
        for flag in row.flags.split():
            assert flag in text
            value = parser.read(["model", flag] if row.switch else ["model", flag, "1"])
            assert getattr(value, row.name) == (True if row.switch else [row.kind("1")] if row.many else row.kind("1"))
        if row.flags:
            assert getattr(nothing, row.name) == (False if row.switch else row.default)
        assert not row.decided_by or row.default is None
    with pytest.raises(SystemExit) as ended:
        generate.main(["--help"])
    assert ended.value.code == 0 and "MODEL [PROMPT] [options]" in capsys.readouterr().out


def test_every_flag_of_the_table_goes_somewhere():
    source = (_find.PACKAGE / "generate.py").read_text() + (_find.PACKAGE / "generate_options.py").read_text()
    for row in ROWS:
        assert f"args.{row.name}" in source or source.count(f'"{row.name}"') > 1, row.name


# -- from outside


def start(run, *words):
    """The command, its pipes without a buffer of ours, of which communicate() would know nothing."""
    command = [sys.executable, "-m", "pyllmc.generate", run, LINE, "--device", "cpu", *words]
    environment = {**os.environ, "PYTHONPATH": str(_find.CHECKOUT)}
    return subprocess.Popen(
        list(map(str, command)), cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip


@pytest.mark.parametrize("samples", [1, 3])
def test_interrupt_from_outside(run, samples):
    """CLI-10: what was drawn stays, whole characters; status 130, no traceback."""
    process = start(run, "-n", 10**8, "--json", "--samples", samples, *GREEDY)
    early = process.stdout.read(1)  # it streams: else nothing would come before the end
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5
    *_, last = (early + out).decode("utf-8").rstrip("\n").rsplit("\n", 1)
    assert process.returncode == 130 and b"Traceback" not in err
    found = json.loads(last)["samples"]
    assert [sample["ended_by"] for sample in found] == ["interrupted"] * samples
    assert all(sample["text"] == expected(LINE, len(sample["ids"])) for sample in found)
    assert f"interrupted after {count(sum(len(sample['ids']) for sample in found), 'token')}\n" in err.decode()


@pytest.mark.parametrize("presses", [1, 2])
def test_interrupt_between_an_id_and_its_text(run, call, monkeypatch, presses):
    """A token is finished first, unless Ctrl-C is pressed again."""
    shown = Sample._shown

    def pressed(sample, piece):
        for _ in range(presses if len(sample.ids) == 30 and not sample.ended else 0):
            signal.raise_signal(signal.SIGINT)
        return shown(sample, piece)

    monkeypatch.setattr(Sample, "_shown", pressed)
    status, out, err = call(run, LINE, "-n", 100, "--json", *GREEDY)
    text, last = out.rstrip("\n").rsplit("\n", 1)
    (sample,) = json.loads(last)["samples"]
    assert (status, len(sample["ids"]), sample["ended_by"]) == (130, 30, "interrupted")
    assert sample["text"] == expected(LINE, 30 if presses == 1 else 29) == text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_reader_that_goes_away(run):
    process = start(run, "-n", 10**8, "-q", *GREEDY)
    assert process.stdout.read(50)
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"pyllmc.generate: nobody reads the output\n")


def test_any_encoding_of_the_output_will_do(run):
    code = "import sys; from pyllmc import generate; sys.exit(generate.main(sys.argv[1:]))"
    done = run_python(code, run, "na", "-n", 12, "-q", "--device", "cpu", *GREEDY, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("?ve ? ")

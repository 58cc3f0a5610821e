"""--config and run.toml: the command line wins, and a run can be repeated by what lies in its folder."""

import os

import pytest
from test_train_cli import TINY, call, here, shards  # noqa: F401 (fixtures)

from pyllmc import run_options, train
from pyllmc.cli import Parser
from pyllmc.config import GPT2Config
from pyllmc.gpt2 import GPT2
from pyllmc.options_file import read_options
from pyllmc.rundir import read_json_log
from pyllmc.tokenizer_file import write_tokenizer_file
from pyllmc.train_options import ENGINE_FIELDS, GROUPS, ROWS


def read(*words):
    return Parser(GROUPS, prog="train").read([str(word) for word in words], train.kind_of_run, train.in_file)


def results(folder):
    """All losses of a run, exact, and its last weights."""
    kept = ("step", "kind", "loss", "norm", "lr", "val_loss", "skipped")
    log = [{name: record[name] for name in kept if name in record} for record in read_json_log(folder / "log.jsonl")]
    (model,) = folder.glob("model_*.bin")
    return log, model.read_bytes()


def test_the_command_line_wins(here):  # noqa: F811
    (here / "c.toml").write_text('batch = 2\nseq-len = 32\nval-every = 0\ntrain-data = "t_*.bin"\nresume = true\ndevice = "cpu"\n')
    args = read("--config", "c.toml", "-t", 16, "-y", 0)
    assert (args.batch, args.seq_len, args.val_every, args.resume, args.train) == (2, 16, 0, False, "t_*.bin")
    assert args.kind == "" and args.sample_every == 20  # shards were named: not the small run's defaults
    assert {"batch", "seq_len", "train", "config"} <= args.given and "sample_every" not in args.given


def test_what_stands_for_something_else_replaces_it(here):  # noqa: F811
    """A run.toml names shape, data and tokenizer; -e and -i on the command line mean another model, other data."""
    (here / "a.toml").write_text('layers = 1\nheads = 1\nchannels = 16\ndata = "text.txt"\ntokenizer = "bytes"\nlr = 0.5')
    args = read("--config", "a.toml", "-e", "d12", "-i", "t.bin", "--heads", 6, "--device", "cpu")
    assert (args.layers, args.channels, args.heads, args.data, args.tokenizer, args.lr) == (None, None, 6, None, None, 0.5)
    (here / "b.toml").write_text('train-data = "t.bin"\nval-data = "v.bin"\nmodel = "d12"')
    args = read("--config", "b.toml", "--data", "text.txt", "--device", "cpu")
    assert (args.train, args.val, args.data, args.model) == (None, None, "text.txt", "d12")


@pytest.mark.parametrize(
    "text, part",
    [("bacth = 2", "c.toml: unknown option 'bacth': did you mean 'batch'?"), ("batch = 'x'", "c.toml: batch: expected a whole"),
     ("batch = 0", "batch"), ("schedule = 'cosin'", "did you mean 'cosine'"), ("config = 'd.toml'", "unknown option 'config'"),
     ("batch =", "c.toml: not a TOML file"), ("resume = true", "-y 1 needs -o")],
)  # fmt: skip
def test_bad_files_are_one_sentence(here, capsys, text, part):  # noqa: F811
    (here / "c.toml").write_text(text)
    words = [word for word in TINY if word not in ("-b", "2")]
    status, _, err = call(capsys, "--data", "text.txt", "--config", "c.toml", "--layers", 1, "--heads", 1, "--channels", 16, *words[-4:])
    assert status == 2 and part in err and err.count("\n") == 1, err
    assert not (here / "runs").exists()
    status, _, err = call(capsys, "--config", "none.toml")
    assert status == 2 and "none.toml" in err and err.count("\n") == 1


def test_a_run_repeated_from_its_folder(here, capsys, monkeypatch):  # noqa: F811
    """The same bits, also from another working folder; a changed option changes them, so they do depend on the file."""
    (here / "runs").mkdir()
    write_tokenizer_file(here / "own.bin", [bytes([byte]) for byte in range(256)] + [b"<end>"], 256)
    words = ["--data", "text.txt", *TINY, "-n", 3, "-d", 64, "-q", 0.3, "-c", 0.2, "--seed", 5, "-nk", 1, "--no-plot"]
    assert call(capsys, *words, "--tokenizer", "own.bin", "-o", "runs/x")[0] == 0
    monkeypatch.chdir(here / "runs")
    for name, more in (("y", []), ("z", ["-c", 0.1]), ("w", ["-b", 4])):
        status, _, err = call(capsys, "--config", "x/run.toml", "-o", name, *more)
        assert status == 0, err
    monkeypatch.chdir(here)
    assert results(here / "runs/x") == results(here / "runs/y")
    assert results(here / "runs/x")[1] != results(here / "runs/z")[1]
    assert (here / "runs/x/run.toml").read_bytes() == (here / "runs/y/run.toml").read_bytes()
    found = read_options(here / "runs/x/run.toml", ROWS)
    assert {"output", "resume", "config", "rank", "hellaswag_data"}.isdisjoint(found) and found["data"] == str(here / "text.txt")
    assert found["tokenizer"] == str(here / "own.bin")
    assert (found["weight_decay"], found["steps"], found["keep"], found["total_tokens"]) == (0.2, 4, 1, 64)


def test_a_run_on_shards_from_a_checkpoint_repeated(shards, here, capsys):  # noqa: F811
    """llm.c's flags, one epoch: what the engine and the data decide stands in the file."""
    with GPT2.from_config(GPT2Config(1, 1, 16, 50, 16), batch=1, seq_len=16, device="cpu") as model:
        model.save("first.bin")
    assert call(capsys, *shards, "-e", "first.bin", "-b", 2, "-s", 0, "-o", "x", "--no-plot", "--threads", 1, "-y", 1)[0] == 0
    found = read_options(here / "x/run.toml", ROWS)
    assert found["model"] == str(here / "first.bin") and found["train"] == str(here / "t_*.bin")
    assert (found["steps"], found["seq_len"], found["threads"], found["device"], found["precision"]) == (18, 16, 1, "cpu", "fp32")
    assert found["lr"] == pytest.approx(3e-4) and "layers" not in found and "tokenizer" not in found
    assert call(capsys, "--config", "x/run.toml", "-o", "y")[0] == 0
    assert results(here / "x") == results(here / "y")


def test_every_option_is_kept_or_left_out_for_a_reason(here, capsys):  # noqa: F811
    assert call(capsys, "--data", "text.txt", *TINY, "-o", "x", "--no-plot")[0] == 0
    found = read_options(here / "x/run.toml", ROWS)
    missing = {row.name for row in ROWS} - found.keys() - set(run_options.LEFT_OUT)
    without_use = {"hellaswag_data"}  # where nothing is measured on it
    assert without_use <= missing <= without_use | {row.name for row in ROWS if row.default is None and row.small is None}
    decided = {"layers", "heads", "channels", "batch", "seq_len", "steps", "lr", "device", "result_lag", "weight_decay"}
    assert decided | set(ENGINE_FIELDS) - {"seed"} <= found.keys()
    assert not {"context", "vocab", "total_tokens"} & found.keys()  # they follow from T, the tokenizer, B and T


def test_a_resumed_run_keeps_what_held_before(here, capsys):  # noqa: F811
    words = ["--data", "text.txt", *TINY, "-o", "x", "--no-plot"]
    assert call(capsys, *words)[0] == 0
    first = (here / "x/run.toml").read_bytes()
    assert call(capsys, *words, "-y", 1)[0] == 3  # complete: nothing is touched
    assert (here / "x/run.toml").read_bytes() == first
    status, out, _ = call(capsys, *words, "-y", 1, "-x", 6, "-l", 0.01, "--seed", 1)
    assert status == 0
    assert "now run_until_00000004.toml: steps 6 (was 4), lr 0.01 (was 0.003), seed 1 (was nothing)" in out
    assert (here / "x/run_until_00000004.toml").read_bytes() == first
    assert read_options(here / "x/run.toml", ROWS)["steps"] == 6
    second = (here / "x/run.toml").read_text() + "# a remark\n"
    (here / "x/run.toml").write_text(second)
    (here / "x/DONE_00000006").unlink()  # as if killed after step 4: the same options again
    status, out, _ = call(capsys, *words, "-y", 1, "-x", 6, "-l", 0.01, "--seed", 1)
    assert status == 0 and "other options" not in out and (here / "x/run.toml").read_text() == second


def test_a_file_of_the_users_own_is_not_lost(here, capsys):  # noqa: F811
    (here / "x").mkdir()
    own = here / "x/run.toml"
    for text in ('data = "text.txt"  # mine\n', "my notes, no TOML"):
        own.write_text(text)
        words = ["--data", "text.txt", *TINY, "-o", "x", "--no-plot"]
        status, _, err = call(capsys, *words)
        assert status == 2 and "x already holds a run (run.toml)" in err
        status, out, _ = call(capsys, *words, "-y", 1)
        assert status == 0 and "now run_until_00000000.toml" in out
        assert (here / "x/run_until_00000000.toml").read_text() == text
        for path in (here / "x").iterdir():
            path.unlink()


def test_it_is_there_before_the_first_checkpoint_and_not_before_good_input(here, capsys, monkeypatch):  # noqa: F811
    seen = []
    real = run_options.write_run_options
    monkeypatch.setattr(run_options, "write_run_options", lambda folder, *rest: seen.append(os.listdir(folder)) or real(folder, *rest))
    assert call(capsys, "--data", "text.txt", *TINY, "-n", 1, "-o", "x", "--no-plot")[0] == 0
    (names,) = seen
    assert sorted(names) == ["log.jsonl", "main.log"]
    status, _, _ = call(capsys, "--data", "text.txt", *TINY, "-o", "y", "--vocab", 60)
    assert status == 2 and not (here / "y").exists() and len(seen) == 1


def test_a_file_that_can_not_be_written_ends_the_run_at_once(here, capsys, monkeypatch):  # noqa: F811
    def full(*_):
        raise OSError(28, "No space left on device", "run.toml")

    monkeypatch.setattr(run_options, "atomic_write", full)
    status, _, err = call(capsys, "--data", "text.txt", *TINY, "-o", "x")
    assert status == 2 and "run.toml: no space left" in err and err.count("\n") == 1

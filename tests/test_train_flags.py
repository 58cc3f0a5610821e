"""llm.c's command lines: the flags of its trainer, with their meaning and their defaults."""

import shlex

import pytest
from test_train_cli import call, here, shards  # noqa: F401 (fixtures)

from pyllmc import train
from pyllmc.cli import Parser
from pyllmc.config import GPT2Config
from pyllmc.gpt2 import GPT2
from pyllmc.rundir import find_latest_complete, read_json_log, read_main_log
from pyllmc.train_options import GROUPS

# Flag, an argument, the name and the value it gets here.
FLAGS = [
    ("-i", "train_*.bin", "train", "train_*.bin"), ("-j", "val_*.bin", "val", "val_*.bin"), ("-e", "d12", "model", "d12"),
    ("-o", "log124M", "output", "log124M"), ("-lg", "5", "gpu_every", 5), ("-n", "5000", "checkpoint_every", 5000),
    ("-nk", "5", "keep", 5), ("-nm", "50000", "major_every", 50000),
    ("-y", "1", "resume", True), ("-b", "64", "batch", 64), ("-t", "2048", "seq_len", 2048),
    ("-d", "524288", "total_tokens", 524288), ("-x", "-1", "steps", -1), ("-k", "wsd", "schedule", "wsd"),
    ("-l", "0.0006", "lr", 0.0006), ("-u", "700", "warmup", 700), ("-q", "0.0", "final_fraction", 0.0),
    ("-c", "0.1", "weight_decay", 0.1), ("-sl", "7.0", "max_loss_z", 7.0), ("-sg", "7", "max_norm_z", 7.0),
    ("-v", "250", "val_every", 250), ("-m", "-1", "val_batches", -1), ("-s", "20000", "sample_every", 20000),
    ("-g", "144", "sample_tokens", 144), ("-a", "0", "overfit", False), ("-f", "0", "tf32", False),
    ("-w", "1", "master_weights", True), ("-ge", "1", "gelu_fusion", 1), ("-z", "1", "zero_stage", 1),
    ("-r", "0", "recompute", 0), ("-pn", "8", "world", 8), ("-pr", "7", "rank", 7), ("-pg", "8", "gpus_per_node", 8),
    ("-pi", "mpi", "init_method", "mpi"), ("-ps", "10.0.0.1", "server", "10.0.0.1"), ("-pf", "/tmp", "shared_folder", "/tmp"),
    ("-h", "1", "hellaswag", True),
]  # fmt: skip

# What llm.c's programs decide where the command line says nothing; None: the engine decides alike.
DEFAULTS = {
    "batch": 4, "seq_len": 1024, "schedule": "cosine", "lr": None, "final_fraction": 1.0, "val_every": 20,
    "val_batches": 20, "sample_every": 20, "sample_tokens": 64, "master_weights": None, "recompute": 1,
    "warmup": 0, "weight_decay": None, "steps": -1, "checkpoint_every": 0, "resume": False, "overfit": False,
    "world": 1, "rank": 0, "total_tokens": None, "keep": 0, "major_every": 0,
}  # fmt: skip
# The same where the engine decides.
ENGINE_DEFAULTS = {"learning_rate": 3e-4, "weight_decay": 0, "master_weights": 1, "tf32": 1, "zero_stage": 0}

LINES = [
    '-i "dev/data/tinyshakespeare/tiny_shakespeare_train.bin" -j "dev/data/tinyshakespeare/tiny_shakespeare_val.bin" '
    '-o log124M -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -y 1 -e "d12"',
    '-i "fineweb_train_*.bin" -j "fineweb_val_*.bin" -o out -v 250 -s 300000 -g 384 -b 32 -t 2048 -d 1048576 -r 0 -z 1 '
    '-c 0.1 -k "cosine" -l 0.0003 -q 0.1 -u 700 -n 2000 -nk 5 -nm 50000 -x 565950 -ge 1 -sl 7.0 -sg 7.0 -y 1 -e "gpt3:c768"',
    '-e "gpt2_124M.bin" -i t.bin -j v.bin -v 0 -m -1 -s 0 -x -1 -a 1 -lg 0 -f 0 -w 0 -k constant',
    '-pn 16 -pr 3 -pg 8 -pi "fs" -pf "/ephemeral/data" -ps "10.0.0.1" -e d48 -i t.bin',
]  # fmt: skip


def read(*words):
    return Parser(GROUPS, prog="train").read([*words], train.kind_of_run)


@pytest.mark.parametrize("flag, word, name, value", FLAGS)
def test_each_flag_of_the_reference(flag, word, name, value):
    found = getattr(read(flag, word, "--device", "cpu"), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("line", LINES)
def test_command_lines_of_the_reference(line):
    words = shlex.split(line)
    args = read(*words)
    named = {flag: (name, value) for flag, _, name, value in FLAGS}
    assert args.kind == "" and args.given == {named[flag][0] for flag in words[::2]}
    for flag, word in zip(words[::2], words[1::2], strict=True):
        name, example = named[flag]
        assert getattr(args, name) == (word == "1" if isinstance(example, bool) else type(example)(word))
    for name, value in DEFAULTS.items():
        if name not in args.given:
            assert getattr(args, name) == value, name


def test_defaults_that_the_engine_decides():
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50, context=16)
    with GPT2.from_config(config, batch=1, seq_len=16, device="cpu") as model:
        found = {**model.hyper_default(), **vars(model.options)}
        assert {name: found[name] for name in ENGINE_DEFAULTS} == pytest.approx(ENGINE_DEFAULTS)


def small_run(*words):
    """A launch script's line, at a size for a test."""
    line = (
        '-i "t_*.bin" -j "v_*.bin" -o {} -v 2 -s 4 -g 20 -b 2 -t 16 -d 64 -x 6 -m -1 -lg 1 -k cosine -l 0.0006 -q 0.0 -u 2 '
        '-c 0.1 -sl 7.0 -sg 7.0 -r 0 -ge 0 -f 0 -w 1 -a 0 -n 2 -nk 2 -nm 2 -y 1 -e first.bin --device cpu'
    )  # fmt: skip
    return [*shlex.split(line.format("log")), "--no-plot", *words]


@pytest.fixture
def first(shards):  # noqa: F811
    config = GPT2Config(layers=1, heads=1, channels=16, vocab=50, context=16)
    with GPT2.from_config(config, batch=1, seq_len=16, device="cpu") as model:
        model.save("first.bin")


def test_a_launch_script_runs_and_goes_on(first, capsys):
    """-e with -y 1, as the scripts have both: the first start takes the named weights, later ones the run's."""
    status, out, err = call(capsys, *small_run("-z", 1))
    assert status == 0, err
    assert "log has no complete checkpoint: the run starts from its beginning" in out
    assert "first: 1 layers" in out and "tokens each (2 x 2 x 16)" in out
    log = read_main_log("log/main.log")
    assert [row[0] for row in log["trl"]] == list(range(6)) and [row[0] for row in log["tel"]] == [0, 2, 4, 6]
    assert [row[2] for row in log["trl"]][:2] == [0.0003, 0.0006]
    assert out.count("--- sample at step") == 2 and find_latest_complete("log").step == 6
    status, out, _ = call(capsys, *small_run("-x", 8))
    assert status == 0 and "resumed from step 6" in out
    assert [row[0] for row in read_main_log("log/main.log")["trl"]] == list(range(8))


def test_weights_are_those_that_are_named(first, capsys):
    """Not random ones: of a folder that doesn't exist yet, nothing can be resumed."""
    losses = []
    for number, words in enumerate((["-e", "first.bin"], ["-e", "first.bin", "-y", 0], ["-e", "other.bin"])):
        with GPT2.from_checkpoint("first.bin", batch=1, seq_len=16, device="cpu") as model:
            model.params["wte"] = 3 * model.params["wte"]
            model.save("other.bin")
        assert call(capsys, *small_run("-o", f"r{number}", "-x", 1, *words))[0] == 0
        losses.append(read_json_log(f"r{number}/log.jsonl")[0]["val_loss"])
    assert losses[0] == losses[1] != losses[2]


def test_one_process_and_what_belongs_to_several(first, capsys, monkeypatch):
    several = ["-pn", 1, "-pr", 0, "-pg", 8, "-pi", "mpi", "-ps", "", "-pf", "/tmp"]
    status, out, err = call(capsys, *small_run(*several))
    assert status == 0, err
    assert [line for line in out.splitlines() if "without effect" in line] == ["note: without effect here: -pg -pi -ps -pf"]
    for words, part in ((["-pn", 8], "-pn 8: training on several GPUs isn't there yet"), (["-pn", 0], "-pn 0"),
                        (["-pr", 1], "-pr 1: the rank of the only process is 0"), (["-z", 2], "zero_stage")):  # fmt: skip
        status, _, err = call(capsys, *small_run(*words, "-o", "new"))
        assert status == 2 and part in err and err.count("\n") == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")  # mpirun -np 8
    status, _, err = call(capsys, *small_run("-o", "new"))
    assert status == 2 and "OMPI_COMM_WORLD_SIZE 8" in err


@pytest.mark.parametrize("word, meant", [("-lr", "--lr"), ("-nx", "-n|-x|-nk"), ("-bs", "-b|-s|-ps"), ("-sq", "-s|-q|-sg|-sl")])
def test_a_short_flag_is_a_whole_word(capsys, word, meant):
    """CLI-09: -lr is not -l with the value r, nor -bs a folder or a number that begins with s."""
    status, _, err = call(capsys, word, 3)
    assert status == 2 and f"unknown argument '{word}': did you mean '" in err and err.count("\n") == 1
    assert err.split("did you mean '")[1].split("'")[0] in meant.split("|")

"""python -m pyllmc.convert: formats, what it says, what it refuses (CKP-07)."""

import shutil
import subprocess
import sys
from pathlib import Path

import hf_folder
import numpy as np
import pytest

from pyllmc import GPT2, GPT2Config, convert, run_state
from pyllmc.formats import peek_checkpoint, read_checkpoint, write_checkpoint
from pyllmc.hf import read_pretrained
from pyllmc.hf_vocabulary import has_vocabulary
from pyllmc.optimizer_state import LoaderState
from pyllmc.tokenizer_file import write_tokenizer_file

MICRO = Path(__file__).parent / "golden" / "micro"
CONFIG = GPT2Config(layers=2, heads=4, channels=32, vocab=61, context=12)
PARAMS = hf_folder.random_params(CONFIG)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with one model as hf/, a.bin and a.pt."""
    monkeypatch.chdir(tmp_path)
    hf_folder.write_folder(tmp_path / "hf", CONFIG, hf_folder.state_dict(CONFIG, PARAMS))
    write_checkpoint("a.bin", CONFIG, PARAMS)
    hf_folder.write_pt(tmp_path / "a.pt", hf_folder.state_dict(CONFIG, PARAMS, conv1d=False))
    return tmp_path


def call(capsys, *argv):
    """(exit status, stdout, stderr) of the command, in this process."""
    try:
        status = convert.main([str(word) for word in argv])
    except SystemExit as ended:  # argparse
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def refused(capsys, said, *argv):
    """Exit status 2, one line, and no file more or less than before."""
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    status, out, err = call(capsys, *argv)
    assert (status, out, err.count("\n")) == (2, "", 1), (status, out, err)
    assert said in err
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_all_sources_make_the_same_checkpoint(here, capsys):
    for source, more in (("hf", ()), ("a.pt", ("--heads", "4")), ("a.bin", ())):
        status, out, err = call(capsys, source, "b.bin", *more, "--force")
        assert (status, err) == (0, "")
        assert (here / "b.bin").read_bytes() == (here / "a.bin").read_bytes()
        assert out.splitlines()[-1] == "llm.c checkpoint b.bin: fp32"


def test_reference_files_survive_the_way_to_a_folder_and_back(here, capsys):
    for name in ("micro_fp32", "micro_bf16"):
        assert call(capsys, MICRO / f"{name}.bin", name)[0] == 0
        assert call(capsys, name, f"{name}.bin")[0] == 0
        assert (here / f"{name}.bin").read_bytes() == (MICRO / f"{name}.bin").read_bytes()


def test_dtypes(here, capsys):
    assert call(capsys, MICRO / "micro_fp32.bin", "b.bin", "--dtype", "bf16")[0] == 0
    assert (here / "b.bin").read_bytes() == (MICRO / "micro_bf16.bin").read_bytes()
    assert call(capsys, MICRO / "micro_bf16.bin", "wide", "--dtype", "fp32")[0] == 0
    assert read_pretrained("wide").dtype == "fp32"
    wide = read_checkpoint(MICRO / "micro_bf16.bin").params
    for name, array in read_pretrained("wide").params.items():
        np.testing.assert_array_equal(array, wide[name][: len(array)])


def test_table_accounts_for_every_tensor(here, capsys):
    out = call(capsys, "hf", "b.bin")[1].splitlines()
    assert out[0].split() == ["tensor", "shape", "dtype", "where", "it", "went"]
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in out[1:-2]}
    assert rows.keys() == hf_folder.state_dict(CONFIG, PARAMS).keys()
    assert rows["transformer.h.1.attn.c_attn.weight"] == ["32x96", "fp32", "qkvw[1], transposed"]
    assert rows["transformer.wte.weight"] == ["61x32", "fp32", "wte"]
    out = call(capsys, "a.bin", "b")[1].splitlines()
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in out[1:17]}
    assert list(rows) == list(CONFIG.shapes())
    assert rows["wte"] == ["128x32", "fp32", "wte.weight, rows 0 to 60"]
    assert rows["fcw"] == ["2x128x32", "fp32", "h.0 to 1.mlp.c_fc.weight, transposed"]
    assert "note: no tokenizer files" in out[17]


def test_tokenizer_files(here, capsys):
    micro = MICRO / "micro_fp32.bin"  # its vocabulary has 257 tokens, as "bytes" has
    assert "note" not in call(capsys, micro, "m", "--tokenizer", "bytes")[1]
    assert "note" not in call(capsys, "m", "n", "--dtype", "bf16")[1]
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (here / "n" / name).read_bytes() == (here / "m" / name).read_bytes()
    refused(capsys, "--tokenizer is for a Hugging Face folder", micro, "c.bin", "--tokenizer", "bytes")
    refused(capsys, "unknown tokenizer 'gtp2': did you mean 'gpt2'", micro, "c", "--tokenizer", "gtp2")
    refused(capsys, "hf: a folder without tokenizer files", micro, "c", "--tokenizer", "hf")


def test_a_run_folder_is_its_latest_checkpoint_with_its_tokenizer(here, capsys):
    """As for generate and evaluate."""
    config = GPT2Config(layers=1, heads=2, channels=16, vocab=300, context=8)
    (here / "run").mkdir()
    with GPT2.from_config(config, batch=1, seq_len=8, device="cpu") as model:
        for step in (3, 5):
            model.params["lnfb"] = np.full(16, step, np.float32)
            run_state.save("run", step, model, LoaderState(0, 3))
    table = [bytes([i]) for i in range(256)] + [b"th", b"<|endoftext|>"]
    write_tokenizer_file("run/tokenizer.bin", table, 257)
    status, out, err = call(capsys, "run", "out")
    assert (status, err) == (0, "") and "note" not in out
    assert out.splitlines()[-2].startswith("checkpoint model_00000005.bin in run: fp32, 1 layers, 2 heads")
    assert read_pretrained("out").params["lnfb"].tolist() == [5] * 16 and has_vocabulary("out")
    assert call(capsys, "run", "out.bin")[0] == 0
    assert (here / "out.bin").read_bytes() == (here / "run" / "model_00000005.bin").read_bytes()


def test_nothing_is_replaced_without_force(here, capsys):
    refused(capsys, "a.bin: exists already; --force replaces it", "hf", "a.bin")
    refused(capsys, "hf: exists already; --force replaces it", "a.bin", "hf")
    refused(capsys, "hf: exists already", "hf", "hf")
    assert call(capsys, "hf", "hf", "--force", "--dtype", "bf16")[0] == 0
    assert read_pretrained("hf").dtype == "bf16"
    assert call(capsys, "a.bin", "a.bin", "--force", "--dtype", "bf16")[0] == 0
    assert peek_checkpoint("a.bin") == (CONFIG, "bf16")


def test_targets_that_cannot_be(here, capsys):
    refused(capsys, "can't write .pt", "hf", "b.pt")
    refused(capsys, "can't write .safetensors", "a.bin", "b.safetensors")
    refused(capsys, "none does not exist", "hf", "none/b.bin")
    refused(capsys, "none does not exist", "a.bin", "none/b")
    (here / "d.bin").mkdir()
    refused(capsys, "d.bin: is a folder", "hf", "d.bin", "--force")
    (here / "plain").touch()
    refused(capsys, "expected a folder", "hf", "plain", "--force")


def test_sources_that_are_none(here, capsys):
    (here / "empty").mkdir()
    (here / "text").write_text("hello")
    refused(capsys, "no such file", "none", "b.bin")
    refused(capsys, "empty holds no model: expected model_SSSSSSSS.bin of a run, or config.json", "empty", "b.bin")
    refused(capsys, "not a model checkpoint: it starts with", "text", "b.bin")
    refused(capsys, "expected the folder", "hf/model.safetensors", "b.bin")
    refused(capsys, "expected --heads N", "a.pt", "b.bin")
    refused(capsys, "2 heads were given, hf says 4", "hf", "b.bin", "--heads", "2")
    refused(capsys, "expected two paths, SOURCE and TARGET, got 1", "hf")
    refused(capsys, "expected two paths, SOURCE and TARGET, got 3", "hf", "a", "b")
    refused(capsys, "did you mean 'bf16'", "hf", "b.bin", "--dtype", "bf15")
    refused(capsys, "'--forse': did you mean '--force'", "hf", "b.bin", "--forse")
    (here / "cut.bin").write_bytes((here / "a.bin").read_bytes()[:-4])
    refused(capsys, "truncated", "cut.bin", "b")


@pytest.mark.parametrize("version", [1, 2, 4, 6])
def test_other_versions_are_named_with_what_to_do(here, capsys, version):
    """CKP-07"""
    raw = bytearray((MICRO / "micro_fp32.bin").read_bytes())
    raw[4:8] = version.to_bytes(4, "little")
    (here / "old.bin").write_bytes(raw)
    for target in ("b", "b.bin"):
        refused(capsys, f"has version {version} (header[1]), this reads version 3 and 5: export", "old.bin", target)


def test_foreign_magic_numbers_are_named(here, capsys):
    """CKP-07"""
    refused(capsys, "this is a token shard (magic 20240520)", MICRO / "train_000001.bin", "b")
    raw = (MICRO / "micro_fp32.bin").read_bytes()
    (here / "swapped.bin").write_bytes(raw[3::-1] + raw[4:])
    refused(capsys, "with swapped bytes", "swapped.bin", "b")


def test_interruption_leaves_nothing(here, capsys, monkeypatch):
    monkeypatch.setattr(convert.Watched, "__getitem__", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = sorted(here.rglob("*"))
    for target in ("b", "b.bin"):
        status, _, err = call(capsys, "hf", target)
        assert (status, err) == (130, "\npyllmc.convert: interrupted; the target is as it was, or complete\n")
    assert sorted(here.rglob("*")) == before


def test_neither_torch_nor_engine_is_needed(here):
    """As a program, where importing torch or loading an engine would fail."""
    (here / "torch.py").write_text("raise RuntimeError('torch was imported')")
    shutil.copy("torch.py", "transformers.py")
    command = (
        "import sys; from pyllmc import _native, convert; _native.choose = None; "
        "sys.exit(convert.main(sys.argv[1:]))"
    )
    for words in (("hf", "b.bin"), ("a.pt", "c", "--heads", "4")):
        done = subprocess.run(
            [sys.executable, "-c", command, *words], capture_output=True, text=True,
            env={"PYTHONPATH": f"{here}:{Path(__file__).resolve().parents[1]}"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done
    assert (here / "b.bin").read_bytes() == (here / "a.bin").read_bytes()

"""The emulated runtime itself: it refuses what it should, wraps every op or none, and the package trains on it."""

import subprocess
import sys

import emulated
import numpy as np
import pytest
from emulated import SMALL, THREADS, serve
from engine import ffi

import pyllmc


@pytest.mark.parametrize("seed", [THREADS, 0])
def test_every_rule_of_the_runtime_can_be_broken(seed):
    lib = serve(seed)
    rules = ffi.string(lib.emulated_rules()).decode().splitlines()
    assert len(rules) > 20
    for rule in rules:
        serve(seed)
        said = ffi.string(lib.emulated_break(rule.encode())).decode()
        assert said and said in emulated.violations(), rule
    serve(seed)


@pytest.mark.parametrize("declared", ["void op(Lane &, float &sum);", "float *op(Lane &, int n);", "void op(Lane &, int n = 1);",
                                      "void op(int n, Lane &);", "template <class X, class Y>\nvoid op(Lane &, X *a, Y *b);"])  # fmt: skip
def test_an_op_that_cannot_be_enqueued_stops_the_build(tmp_path, declared):
    header = tmp_path / "ops.h"
    said = []
    for op in ("void other(Lane &, const float *inp /*(n)*/, int n);", declared):
        header.write_text(f"namespace llmc {{\n{op}\n}}\n")
        program = [sys.executable, emulated.PATH.parents[1] / "tests" / "emulation" / "wrap_ops.py", header]
        said.append(subprocess.run(program, capture_output=True, text=True))
    assert said[0].returncode == 0 and "other(cpu, a0, a1)" in said[0].stdout
    assert said[1].returncode == 1 and said[1].stderr.startswith("wrap_ops.py") and "op" in said[1].stderr


def test_the_package_trains_on_it(tmp_path):
    """By name of its file alone: no device is called like it."""
    emulated.load()
    rng = np.random.default_rng(0)
    pyllmc.formats.write_shard(tmp_path / "t.bin", rng.integers(0, SMALL.vocab, 40 * 16 + 1))
    states = []
    for library in (None, emulated.PATH):
        with (
            pyllmc.GPT2.from_config(SMALL, batch=2, seq_len=8, device="cpu", library=library, threads=1) as model,
            pyllmc.TokenLoader(tmp_path / "t.bin", 2, 8, shuffle=True) as data,
        ):
            folder = tmp_path / f"run {len(states)}"
            pyllmc.Trainer(model, data, run_dir=folder, checkpoint_every=7, steps=20, val_every=0, sample_every=0).run()
            assert ("emulated" in model.library.build_info) == bool(library)
        states.append({path.name: path.read_bytes() for path in folder.glob("*_000000*")})
    assert len(states[0]) == 12 and states[0] == states[1]
    with pytest.raises(pyllmc.errors.InvalidArgument, match="emulated"):
        pyllmc.GPT2.from_config(SMALL, batch=2, seq_len=8, device="emulated")

"""Which checkpoint is resumed, and logs without repeated steps."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pyllmc.config import GPT2Config
from pyllmc.formats import LoaderState, OptimizerState, write_checkpoint, write_state
from pyllmc.rundir import (
    JsonLog,
    MainLog,
    done_name,
    extra_name,
    find_latest_complete,
    mark_complete,
    model_name,
    read_json_log,
    read_main_log,
    remove_checkpoint,
    state_name,
)

CONFIG = GPT2Config(1, 1, 2, 5, 4)


def save(folder, step, world=1):
    params = {name: np.zeros(shape, np.float32) for name, shape in CONFIG.shapes().items()}
    write_checkpoint(folder / model_name(step), CONFIG, params)
    zeros = np.zeros(CONFIG.num_params, np.float32)
    for rank in range(world):
        state = OptimizerState(step, zeros, zeros, None, LoaderState(0, 0), world, rank)
        write_state(folder / state_name(step, rank), state)
    mark_complete(folder, step)


def test_names_are_those_of_the_reference():
    assert (model_name(10), state_name(10), done_name(10)) == (
        "model_00000010.bin", "state_00000010_00000.bin", "DONE_00000010",
    )  # fmt: skip


def test_stray_and_partial_markers_are_passed_over_with_a_reason(tmp_path):
    """CKP-05."""
    save(tmp_path, 100)
    save(tmp_path, 200)
    (tmp_path / model_name(200)).unlink()
    (tmp_path / "DONE_00000300.tmp").touch()
    (tmp_path / "DONE_abc").touch()
    step, skipped = find_latest_complete(tmp_path)
    assert step == 100
    reasons = dict(skipped)
    assert reasons.keys() == {"DONE_00000200", "DONE_00000300.tmp", "DONE_abc"}
    assert reasons["DONE_00000200"] == "model_00000200.bin is missing"
    assert "not a marker" in reasons["DONE_abc"]


def test_every_file_of_a_set_must_be_whole(tmp_path):
    save(tmp_path, 1, world=2)
    assert find_latest_complete(tmp_path, world=2) == (1, [])
    for damage, text in (
        (lambda: (tmp_path / state_name(9, 1)).unlink(), "state_00000009_00001.bin is missing"),
        (lambda: cut(tmp_path / state_name(9, 1)), "truncated"),
        (lambda: cut(tmp_path / model_name(9)), "truncated"),
        (lambda: (tmp_path / state_name(9, 1)).write_bytes((tmp_path / state_name(9, 0)).read_bytes()),
         "its rank is 0, expected 1"),
        (lambda: (tmp_path / state_name(9, 0)).write_bytes((tmp_path / state_name(1, 0)).read_bytes()),
         "its step is 1, expected 9"),
    ):  # fmt: skip
        save(tmp_path, 9, world=2)
        damage()
        step, ((marker, reason),) = find_latest_complete(tmp_path, world=2)
        assert (step, marker) == (1, "DONE_00000009")
        assert text in reason


def cut(path):
    path.write_bytes(path.read_bytes()[:-4])


def test_a_run_of_another_size_is_named(tmp_path):
    save(tmp_path, 3, world=2)
    step, skipped = find_latest_complete(tmp_path, world=1)
    assert step is None and "number of ranks is 2, expected 1" in skipped[0][1]


def test_no_folder_and_no_checkpoint(tmp_path):
    assert find_latest_complete(tmp_path / "absent") == (None, [])
    save(tmp_path, 5)
    (tmp_path / done_name(5)).unlink()
    assert find_latest_complete(tmp_path) == (None, [])


def test_reference_checkpoint_is_found(golden, tmp_path):
    for name in ("model_00000010.bin", "state_00000010_00000.bin"):
        (tmp_path / name).symlink_to(golden / f"mid_{name}")
    mark_complete(tmp_path, 10)
    assert find_latest_complete(tmp_path) == (10, [])


def test_removal_takes_all_files_of_one_step(tmp_path):
    save(tmp_path, 1, world=2)
    save(tmp_path, 11, world=2)
    (tmp_path / extra_name(1)).touch()
    remove_checkpoint(tmp_path, 1)
    remove_checkpoint(tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 4
    assert find_latest_complete(tmp_path, world=2) == (11, [])


def test_main_log_reads_and_writes_like_the_reference(golden, tmp_path):
    read = read_main_log(golden / "mid_main.log")
    assert read["tel"][0] == (0, 8.3759) and read["trl"][-1] == (19, 5.5408, 0.000107, 2.85)
    log = MainLog(tmp_path)
    validation = dict(read["tel"])
    for step, *values in [*read["trl"], (20,)]:
        if step in validation:
            log.validation(step, validation[step])
        if values:
            log.train(step, *values)
    log.close()
    assert (tmp_path / "main.log").read_text().rstrip("\n") == (golden / "mid_main.log").read_text().rstrip(
        "\n"
    )


def write_steps(log, steps):
    for step in steps:
        if step % 5 == 0:
            log.validation(step, 5 - step / 100)
            log.evaluation(step, 0.25)
        log.train(step, 6 - step / 100, 1e-3, 2.0)
    log.close()


def test_resumed_logs_never_repeat_a_step(tmp_path):
    write_steps(MainLog(tmp_path), range(12))
    write_steps(MainLog(tmp_path, resume_step=10), range(10, 23))
    write_steps(MainLog(tmp_path, resume_step=20), range(20, 23))
    read = read_main_log(tmp_path / "main.log")
    assert [row[0] for row in read["trl"]] == list(range(23))
    assert [row[0] for row in read["tel"]] == [row[0] for row in read["eval"]] == [0, 5, 10, 15, 20]
    lines = (tmp_path / "main.log").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 23 + 5 + 5


def test_a_log_cut_off_by_a_crash(tmp_path):
    write_steps(MainLog(tmp_path), range(3))
    path = tmp_path / "main.log"
    whole = path.read_text()
    for rest in ("s:3 trl:5.9", "s:3 trl:5.9700 lr:0.001000 norm:2", "s:3 tel:4."):  # some look complete
        path.write_text(whole + rest)
        read = read_main_log(path)
        assert [row[0] for row in read["trl"]] == [0, 1, 2] and len(read["tel"]) == 1
    write_steps(MainLog(tmp_path, resume_step=3), [3])
    assert [row[0] for row in read_main_log(path)["trl"]] == [0, 1, 2, 3]


def test_without_resume_a_log_starts_empty_and_numbers_may_be_nan(tmp_path):
    write_steps(MainLog(tmp_path), range(3))
    log = MainLog(tmp_path)
    log.train(0, math.nan, 1e-4, math.inf)
    rows = read_main_log(tmp_path / "main.log")["trl"]  # readable while open
    log.close()
    assert len(rows) == 1 and math.isnan(rows[0][1]) and rows[0][3] == math.inf


def test_json_log(tmp_path):
    path = tmp_path / "log.jsonl"
    log = JsonLog(path)
    for step in range(4):
        log.write(step, loss=np.float32(1.5), norm=math.nan, skipped=False, path=str(Path("x")))
    log.close()
    path.write_text(path.read_text() + '{"step": 4, "lo')
    assert [record["step"] for record in read_json_log(path)] == [0, 1, 2, 3]
    log = JsonLog(path, resume_step=2)
    log.write(2, loss=math.inf)
    log.close()
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # strict JSON only
    assert read_json_log(path)[1:] == [
        {"step": 1, "loss": 1.5, "norm": None, "skipped": False, "path": "x"},
        {"step": 2, "loss": None},
    ]

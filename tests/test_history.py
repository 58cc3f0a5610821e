"""Logs as arrays: which file is read, what a resumed run replaces, and that no line is too odd."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmc.errors import FormatError, InvalidArgument
from pyllmc.history import History, find_logs, read_history
from pyllmc.rundir import JsonLog, MainLog, read_json_log, read_main_log


def train(step, loss, **more):
    return {"kind": "train", "step": step, "loss": loss, **more}


def write_json(folder, records, end="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, records)) + end)
    return folder


def test_reference_log(golden):
    history = read_history(golden / "mid_main.log")
    expected = read_main_log(golden / "mid_main.log")
    assert (history.name, history.source, history.notes) == ("mid_main", "mid_main.log", [])
    found = zip(history.step, history.loss, history.lr, history.norm, strict=True)
    assert list(found) == expected["trl"] and history.step.size == 20
    assert list(zip(history.val_step, history.val_loss, strict=True)) == expected["tel"]
    assert np.isnan(history.ms).all() and np.isnan(history.tok_s).all() and not history.skipped.any()


def test_own_log(tmp_path):
    log = JsonLog(tmp_path / "log.jsonl")
    log.write(0, kind="val", val_loss=3.5)
    log.write(0, kind="train", loss=3.0, lr=1e-3, norm=1.5, ms=5.0, tok_s=100.0, skipped=None)
    log.write(1, kind="train", loss=math.inf, lr=1e-3, norm=math.nan, ms=5.0, tok_s=100.0, skipped="not finite")
    log.write(2, kind="of the future", loss=1.0)
    log.close()
    history = read_history(tmp_path)
    assert history.name == tmp_path.name and history.source == "log.jsonl" and history.notes == []
    assert list(history.step) == [0, 1] and history.loss[0] == 3 and math.isnan(history.loss[1])
    assert list(history.skipped) == [False, True] and list(history.ms) == [5, 5] and list(history.tok_s) == [100, 100]
    assert (list(history.val_step), list(history.val_loss)) == ([0], [3.5])


def test_which_log_of_a_folder(tmp_path):
    log = MainLog(tmp_path)
    log.train(0, 9.0, 1e-3, 1.0)
    log.evaluation(0, 0.27)
    log.close()
    assert read_history(tmp_path).loss == [9]
    write_json(tmp_path, [train(0, 8.0)])
    assert [path.name for path in find_logs(tmp_path)] == ["log.jsonl", "main.log"]
    both = read_history(tmp_path)
    assert both.loss == [8] and both.source == "log.jsonl" and both.accuracy == [0.27]  # only main.log has that
    (tmp_path / "log.jsonl").write_text("")
    assert read_history(tmp_path).loss == [9]
    assert read_history(tmp_path / "main.log").name == tmp_path.name


def test_a_run_that_another_trainer_began(tmp_path, golden):
    """llm.c's main.log has all steps, this package's log.jsonl those after it went on, at step 10 of 20."""
    expected = read_main_log(golden / "mid_main.log")
    (tmp_path / "main.log").write_text((golden / "mid_main.log").read_text() + "s:10 eval:0.3000\ns:20 eval:0.3100\n")
    ours = [{"kind": "val", "step": 10, "val_loss": 6.5}, *(train(step, 7.0, ms=4.0, skipped="x") for step in range(10, 14))]
    history = read_history(write_json(tmp_path, ours))
    assert (history.source, list(history.step)) == ("log.jsonl", list(range(14)))
    assert list(history.loss) == [loss for step, loss, *_ in expected["trl"] if step < 10] + [7.0] * 4
    assert list(history.skipped) == [False] * 10 + [True] * 4
    assert np.isnan(history.ms[:10]).all() and list(history.ms[10:]) == [4.0] * 4
    assert list(zip(history.val_step, history.val_loss, strict=True)) == [*expected["tel"][:2], (10, 6.5)]
    assert list(zip(history.eval_step, history.accuracy, strict=True)) == [(10, 0.3), (20, 0.31)]
    with_eval = [*ours, {"kind": "eval", "step": 12, "accuracy": 0.5}]
    assert list(read_history(write_json(tmp_path, with_eval)).eval_step) == [12]
    from_start = [train(step, 7.0) for step in range(4)]  # then nothing is taken over, not even what comes later
    assert list(read_history(write_json(tmp_path, from_start)).step) == [0, 1, 2, 3]


def test_what_is_no_run(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no run in the folder .*: looked for log.jsonl and main.log"):
        read_history(tmp_path)
    with pytest.raises(InvalidArgument, match="absent: no such file or folder"):
        read_history(tmp_path / "absent")
    (tmp_path / "text").write_text("so it goes\n" * 3)
    with pytest.raises(FormatError, match="text: expected a log.jsonl, a main.log or what llm.c's trainer printed"):
        read_history(tmp_path / "text")
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 20000)
    with pytest.raises(FormatError, match="weights.bin: expected a log"):
        read_history(tmp_path / "weights.bin")
    (tmp_path / "empty").write_text("")
    assert read_history(tmp_path / "empty").step.size == 0


def resumed_twice():
    """PLT-03: checkpoint at 200, crash after 212, resumed to 230, crash, resumed at 220 and 3 steps done so far."""
    attempts = (range(0, 213), range(200, 231), range(220, 223))
    return [train(step, 10.0 * attempt + step / 1000) for attempt, steps in enumerate(attempts) for step in steps]


def test_replayed_steps_are_replaced_and_marked(tmp_path):
    history = read_history(write_json(tmp_path, resumed_twice()))
    assert list(history.step) == list(range(223))
    assert list(history.resumed_at) == [200, 220]
    assert (history.loss // 10).astype(int).tolist() == [0] * 200 + [1] * 20 + [2] * 3
    assert history.notes == ["resumed at 200, 220: 24 earlier steps replaced"]


def test_replayed_main_log(tmp_path):
    lines = []
    for attempt, steps in enumerate((range(0, 13), range(10, 16))):
        for step in steps:
            if step % 5 == 0:
                lines += [f"s:{step} tel:{attempt}.5000", f"s:{step} eval:0.{attempt}000"]
            lines.append(f"s:{step} trl:{attempt}.0000 lr:0.001000 norm:1.00")
    (tmp_path / "main.log").write_text("\n".join(lines) + "\n")
    history = read_history(tmp_path)
    assert list(history.step) == list(range(16)) and list(history.loss) == [0] * 10 + [1] * 6
    assert (list(history.val_step), list(history.val_loss)) == ([0, 5, 10, 15], [0.5, 0.5, 1.5, 1.5])
    assert list(history.eval_step) == [0, 5, 10, 15] and list(history.resumed_at) == [10]


def test_going_back_voids_later_validations_too():
    records = [train(9, 1.0), {"kind": "val", "step": 10, "val_loss": 1.0}, train(10, 1.0), train(5, 2.0), train(9, 2.0)]
    # 5 was never logged before: in disorder, and nothing is lost
    assert list(History.from_records(records).val_step) == [10]
    history = History.from_records([train(5, 1.0), *records])
    assert list(history.step) == [5, 9] and history.val_step.size == 0


def test_one_replayed_step_and_repeated_lines():
    again = History.from_records([train(0, 1.0), train(1, 2.0), train(1, 3.0), train(2, 4.0)])
    assert list(again.loss) == [1, 3, 4] and list(again.resumed_at) == [1]
    twice = History.from_records([train(0, 1.0), train(1, None), train(1, None), train(2, 4.0)], source="x")
    assert list(twice.step) == [0, 1, 2] and twice.resumed_at.size == 0
    assert twice.notes == ["1 repeated line in x passed over"]


@given(st.lists(st.integers(0, 30), max_size=60))
def test_steps_always_increase_and_the_last_value_wins(steps):
    history = History.from_records(train(step, float(at)) for at, step in enumerate(steps))
    assert (np.diff(history.step) > 0).all()
    last = {step: at for at, step in enumerate(steps)}
    assert all(last[int(step)] == loss for step, loss in zip(history.step, history.loss, strict=True))
    if steps:
        assert steps[-1] in history.step


def test_lines_in_disorder_are_sorted_and_none_is_lost():
    history = History.from_records([train(step, float(step)) for step in (3, 1, 2, 0, 5, 4)])
    assert list(history.step) == list(history.loss) == [0, 1, 2, 3, 4, 5]
    assert "out of order" in history.notes[0] and history.resumed_at.size == 0


@pytest.mark.parametrize("rest", ['{"kind": "train", "step": 3, "lo', '{"kind": "train", "step": 3, "loss": 1}', "s:3 trl:5.9"])
def test_a_last_line_without_its_end_was_being_written(tmp_path, rest):
    history = read_history(write_json(tmp_path, [train(0, 3.0), train(1, 2.0)], "\n" + rest))
    assert list(history.step) == [0, 1] and history.notes == ["the last line of log.jsonl is cut off"]


def test_windows_line_ends_and_nul_bytes(tmp_path):
    (tmp_path / "main.log").write_bytes(b"s:0 trl:3.0000 lr:0.001000 norm:1.00\r\n\0\0\0\0\ns:1 trl:nan lr:-0.0 norm:-nan\n")
    history = read_history(tmp_path)
    assert list(history.step) == [0, 1] and math.isnan(history.loss[1])
    assert history.notes == ["1 line of another form passed over in main.log"]


ODD = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([
        b"s:1 trl:1.2.3 lr:. norm:1", b"s:" + b"9" * 30 + b" tel:1.0", b"s:\xd9\xa1 tel:1.0", b"[" * 3000, b"{" * 3000,
        b'{"step": true, "kind": "train"}', b'{"step": 1e3, "kind": "train"}', b'{"step": -1, "kind": "train"}',
        b'{"step": 4, "kind": ["train"]}', b'{"step": 1' + b"0" * 40 + b', "kind": "val"}', b'{"step": 1, "kind": null}',
        b'{"a": ' * 2000, b"null", b"{}", b"\xff\xfe{", b'{"step": 1' + b"0" * 5000 + b"}",
    ]),
)  # fmt: skip
VALUE = st.one_of(st.floats(), st.integers(-(10**400), 10**400), st.none(), st.booleans(), st.text(max_size=5),
                  st.lists(st.integers(), max_size=3), st.just({"a": 1}))  # fmt: skip


@given(st.lists(st.one_of(ODD, st.builds(
    lambda step, kind, loss, ms: json.dumps({"step": step, "kind": kind, "loss": loss, "val_loss": ms, "ms": ms}).encode(),
    st.integers(-2, 50), st.sampled_from(["train", "val", "eval", "x"]), VALUE, VALUE)), max_size=20), st.booleans())  # fmt: skip
def test_no_line_is_too_odd(tmp_path_factory, lines, whole):
    folder = tmp_path_factory.mktemp("log")
    for name in ("log.jsonl", "main.log"):
        (folder / name).write_bytes(b"\n".join(lines) + (b"\n" if whole else b""))
        history = read_history(folder / name)
        assert history.step.size == history.loss.size == history.skipped.size <= len(lines)
        assert (np.diff(history.step) > 0).all() and (np.diff(history.val_step) > 0).all()
    read_json_log(folder / "log.jsonl")
    read_main_log(folder / "main.log")


def test_numbers_beside_an_odd_value_survive():
    """A block with a value that NumPy can't take is read one by one."""
    history = History.from_records([train(0, 1.5, ms=4), train(1, {"a": 1}, ms="slow"), train(2, 10**400, ms=[2])])
    assert history.loss[0] == 1.5 and history.ms[0] == 4 and np.isnan(history.ms[1:]).all()
    assert math.isnan(history.loss[1]) and history.loss[2] == math.inf

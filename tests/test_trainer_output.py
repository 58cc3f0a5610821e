"""What llm.c's trainer printed, as a log: pyllmc.plot draws it like any other."""

import numpy as np

from pyllmc.history import read_history
from pyllmc.rundir import read_main_log
from pyllmc.trainer_output import records


def line(number, loss="3.000000", total=9):
    return f"step {number:4}/{total} | loss {loss} (+nanz)| norm 2.5000 (-1.25z)| lr 5.00e-04 | 2.50 ms | 31.4% bf16 MFU | 4096 tok/s"


def test_a_captured_run_tells_what_its_main_log_tells(golden):
    printed, log = read_history(golden / "logs" / "mid_fp32_stdout.log"), read_main_log(golden / "mid_main.log")
    assert (printed.name, printed.source, printed.notes) == ("mid_fp32_stdout", "mid_fp32_stdout.log", [])
    steps, losses, rates, norms = map(np.array, zip(*log["trl"], strict=True))
    assert printed.step.tolist() == steps.tolist()
    for found, expected, rounding in ((printed.loss, losses, 5e-5), (printed.lr, rates, 6e-6), (printed.norm, norms, 5e-3)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=rounding * 1.1)
    assert printed.val_step.tolist() == [step for step, _ in log["tel"]]
    np.testing.assert_allclose(printed.val_loss, [loss for _, loss in log["tel"]], rtol=0, atol=5e-5)
    assert printed.ms[[0, 1]].tolist() == [2.19, 1.07] and printed.tok_s[0] == 116962


def test_an_output_that_was_appended_to(golden, tmp_path):
    """As by "tee -a": the validation at the head of the second part belongs to the step it goes on from."""
    parts = [(golden / "logs" / f"mid_fp32_{name}.log").read_text() for name in ("stdout", "resume_stdout")]
    (tmp_path / "both.log").write_text("".join(parts))
    history = read_history(tmp_path / "both.log")
    assert history.step.tolist() == list(range(20)) and history.resumed_at.tolist() == [10]
    assert history.val_step.tolist() == [0, 5, 10, 15, 20]
    alone = read_history(golden / "logs" / "mid_fp32_resume_stdout.log")
    assert alone.step.tolist() == list(range(10, 20)) and alone.val_step.tolist() == [10, 15, 20]


def test_evaluations_samples_and_other_lines():
    found = list(records([
        "val loss 4.000000", "HellaSwag: 2/8 = 0.250000", line(1), "noise", "generating:", "---", line(7), "val loss 1.000000",
        "---", line(2, "nan"), "HellaSwag: 3/8 = 0.375000", "step 3/9 | loss of another form", line(3)[:40],
    ]))  # fmt: skip
    assert [(record["kind"], record["step"]) for record in found] == [
        ("val", 0), ("eval", 0), ("train", 0), ("train", 1), ("eval", 2)
    ]  # fmt: skip
    assert found[1]["accuracy"] == 0.25 and found[4]["accuracy"] == 0.375 and np.isnan(found[3]["loss"])
    assert found[2] == {"kind": "train", "step": 0, "loss": 3.0, "lr": 5e-4, "norm": 2.5, "ms": 2.5, "tok_s": 4096}
    assert list(records(["val loss 4.000000"])) == []

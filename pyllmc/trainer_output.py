"""What llm.c's trainer prints, understood line by line."""

import re

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf)"
# Losses and norms may be nan; utilisation is -100% on a GPU that llm.c doesn't know, or n/a.
STEP = re.compile(
    rf"step +(?P<number>\d{{1,15}})/(?P<total>\d+) \| loss +(?P<loss>{NUMBER}) \({NUMBER}z\)"
    rf"\| norm +(?P<norm>{NUMBER}) \({NUMBER}z\)\| lr (?P<lr>{NUMBER}) \| (?P<ms>\d+\.\d+) ms \| [^|]*\| (?P<tok_s>{NUMBER}) tok/s"
)
VALIDATION = re.compile(rf"val loss ({NUMBER})")
ACCURACY = re.compile(rf"HellaSwag: \d+/\d+ = ({NUMBER})")
BEGINS = re.compile(r"\| Parameter +\| Value +\|")  # the first line of a run's table of parameters
SAMPLE_BEGINS, SAMPLE_EDGE = "generating:", "---"


def outside_samples(lines):
    """Yield the lines, stripped, but for those of sampled texts, in which anything may stand.

    One without an end, from a run that died there, ends where the next run begins."""
    edges = 2
    for line in map(str.strip, lines):
        if edges < 2 and not BEGINS.fullmatch(line):
            edges += line == SAMPLE_EDGE
        elif line == SAMPLE_BEGINS:
            edges = 0
        else:
            edges = 2
            yield line


def records(lines):
    """Yield dictionaries as log.jsonl holds them, {"kind": "train", "step": 0, ...}, of the lines that tell of training.

    Steps count from 0, as in the logs. A validation or evaluation belongs to the updates printed before it; to those
    before the next step where the run has just begun, or gone on.
    """
    done, waiting = None, []
    for line in outside_samples(lines):
        if found := STEP.fullmatch(line):
            done = int(found["number"])
            yield from ({"step": done - 1, **record} for record in waiting)
            waiting.clear()
            yield {"kind": "train", "step": done - 1, **{name: float(found[name]) for name in ("loss", "lr", "norm", "ms", "tok_s")}}
        elif found := VALIDATION.fullmatch(line) or ACCURACY.fullmatch(line):
            kind, name = ("val", "val_loss") if found.re is VALIDATION else ("eval", "accuracy")
            record = {"kind": kind, name: float(found[1])}
            if done is None:
                waiting.append(record)
            else:
                yield {"step": done, **record}
        elif BEGINS.fullmatch(line):
            done = None

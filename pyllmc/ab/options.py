"""The options of `python -m pyllmc.ab`: the table that its parser, its help and its defaults come from."""

import dataclasses

from ..cli import Option
from ..train_options import ROWS as TRAINING

MODEL = next(row for row in TRAINING if row.name == "model")

GROUPS = {
    "sides": (
        Option("a", "--a", 'switches of side A, such as "streams=1 graph=off"; nothing: all defaults', default="",
               metavar="WORDS"),
        Option("b", "--b", "a side to compare with A: switches, or reference:PATH, an llm.c trainer; may be repeated",
               metavar="WORDS", many=True),
        Option("each_switch", "--each-switch", "compare A with each switch turned off", switch=True),
        Option("sweep", "--sweep", "do so at each of several values, such as batch=4,8,16", metavar="NAME=LIST"),
        Option("reference_args", "--reference-args", "more flags for the reference, which win over those chosen here",
               metavar="FLAGS"),
        Option("timeout", "--timeout", "seconds after which a run of the reference is stopped", float, 600.0),
    ),
    "workload": (
        dataclasses.replace(MODEL, decided_by="d12 on a GPU, else a small model"),
        Option("batch", "-b --batch", "rows B of a batch", int, decided_by="4, for the small model 8"),
        Option("seq_len", "-t --seq-len", "tokens T of a row", int, decided_by="1024, for the small model 64"),
        Option("train", "-i --train-data", "token shards, a glob pattern", metavar="PATTERN",
               decided_by="random tokens"),
        Option("lr", "-l --lr", "learning rate; small, so that losses stay comparable", float, 1e-5),
        Option("device", "--device", "auto, cpu, cuda or cuda:N", str, "auto", metavar="NAME"),
    ),
    "measurement": (
        Option("rounds", "--rounds", "rounds, of two blocks of each side", int, 10),
        Option("steps", "--steps", "timed steps of a block", int, 20),
        Option("settle", "--settle", "untimed steps before each block", int, 2),
        Option("warmup", "--warmup", "untimed steps after a model was made", int, 10),
        Option("fresh", "--fresh", "a new model for each block, so that luck of placement and tuning shows as spread",
               switch=True),
        Option("seed", "--seed", "of the order of blocks", int, 0),
    ),
    "result": (
        Option("output", "-o --output", "JSON file; the picture lies beside it", metavar="FILE",
               decided_by="runs/TIME-ab-NAME.json"),
        Option("json", "--json", "end with one line of JSON on stdout", switch=True),
        Option("no_plot", "--no-plot", "draw no picture", switch=True),
        Option("draw", "--draw", "measure nothing, draw the picture of this JSON file again", metavar="FILE"),
    ),
}  # fmt: skip

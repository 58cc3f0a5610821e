"""Honest A/B of training step time: `python -m pyllmc.ab`.

variants.py   what a side is: words of switches, or a binary
stats.py      what interleaved rounds say; pure numbers
engine.py reference.py    the two kinds of side, each giving blocks of steps
workload.py   the same tokens and weights for all of them
measure.py    rounds of blocks, in which order, with which models alive
losses.py     whether both sides computed the same
record.py report.py picture.py    the JSON file, the table, the picture
plan.py command.py    from arguments to comparisons, and the command line
"""

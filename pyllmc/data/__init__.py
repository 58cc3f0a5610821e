"""Training data from files: python -m pyllmc.data, or pyllmc.data.prepare()

inputs.py finds files and cuts them into ranges, encode.py turns a range into tokens (in several processes:
workers.py), preparation.py splits and writes them as shards, state.py remembers how far that got. hellaswag.py makes
the evaluation file, describe.py tells what is in a file, catalogue.py knows the usual sets.
"""

from .preparation import Prepared, prepare

__all__ = ["Prepared", "prepare"]

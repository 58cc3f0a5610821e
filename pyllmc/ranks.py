"""What a command line says of processes that train together: one, for now."""

import os

from .errors import InvalidArgument

# What MPI's launchers tell each process of their number
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def check_alone(world, rank):
    """Raise InvalidArgument unless this process is to train alone: world 1, rank 0, no launcher of several.

    Several that were started together would each train the whole model, into the same folder.
    """
    for source, size in (("-pn", world), *((name, _number(name)) for name in LAUNCHERS)):
        if size > 1:
            raise InvalidArgument(f"{source} {size}: training on several GPUs isn't there yet, start one process (-pn 1)")
    if world < 1:
        raise InvalidArgument(f"-pn {world}: the number of processes must be 1")
    if rank:
        raise InvalidArgument(f"-pr {rank}: the rank of the only process is 0")


def _number(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 1

"""Which checkpoints of a run folder are removed as newer ones become complete."""

from . import rundir


def prune(folder, step, keep, major_every=0, world=1):
    """After the checkpoint of `step` is complete: keep it, of the complete ones the newest `keep` (0: all), and those
    at multiples of major_every (0: no others); remove the rest, and return their steps.

    Files of incomplete checkpoints stay, for they may be somebody else's, except what an earlier removal that was
    killed has left. Raises OSError where a file can't be deleted.
    """
    if not keep:
        return []
    rundir.finish_removals(folder)
    older = [found for found in rundir.complete_steps(folder, world) if found < step]
    surplus = [found for found in older[keep - 1 :] if not major_every or found % major_every]
    for found in surplus:
        rundir.remove_checkpoint(folder, found)
    return surplus

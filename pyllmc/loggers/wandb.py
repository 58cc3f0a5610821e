"""Weights & Biases. WANDB_PROJECT, WANDB_MODE=offline and its other variables hold as everywhere."""

import os

from ..atomic import atomic_write
from ..errors import Unavailable

RUN_ID = "wandb_id"  # file in the run folder: under which id the run goes on after a resume
PROJECT = "pyllmc"


class WeightsAndBiases:
    """A backend (see the package). options: further keywords of wandb.init."""

    name = "Weights & Biases"

    def __init__(self, **options):
        try:
            import wandb
        except ImportError as error:
            raise Unavailable(f"logging to Weights & Biases needs its package: pip install wandb ({error})") from None
        self._wandb, self._options, self._run, self._first = wandb, options, None, 0

    def open(self, run):
        keywords = {"project": os.environ.get("WANDB_PROJECT") or PROJECT, "config": run.config}
        path = run.folder and run.folder / RUN_ID
        if path:
            keywords |= {"dir": str(run.folder), "name": run.folder.resolve().name}
            if run.resumed and path.is_file():
                keywords |= {"id": path.read_text(encoding="ascii").strip(), "resume": "allow"}
        try:
            self._run = self._wandb.init(**{**keywords, **self._options})
        except Exception as error:  # no account, no network, a wrong option
            raise Unavailable(
                f"Weights & Biases could not be started: {error} (WANDB_MODE=offline needs neither account nor network)"
            ) from error
        if path:
            with atomic_write(path) as file:
                file.write(f"{self._run.id}\n".encode())
        self._first = self._run.step  # it takes no step twice: those before were logged ahead of the checkpoint

    def scalars(self, step, values):
        if step >= self._first:
            self._run.log(values, step=step)

    def text(self, step, name, content):
        """Nothing: a run there holds numbers and media, no plain texts."""

    def close(self, error):
        self._run.finish(exit_code=0 if error is None else 1)

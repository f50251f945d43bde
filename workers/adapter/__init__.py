"""Makes a training loop of the user's own a trial: `trial = adapter.trial()`, `trial.prepare(model)`, `trial.report(loss)`.

Importing it has no effect on a training that runs without Shardtune. What measures lives in `workers.rank.training.scripted`,
which starts the script and hands the trial in here; nothing here imports it.
"""

import os

from shardtune.workers.adapter.trial import AdapterError, Refused, ScriptTrial, Stopped

__all__ = ["AdapterError", "Refused", "ScriptTrial", "Stopped", "in_trial", "trial"]

RANK_PID = "SHARDTUNE_RANK_PID"
"""Environment variable: the process that the worker started as this rank."""

_current: ScriptTrial | None = None


def in_trial() -> bool:
    """Whether a worker runs this script as a trial."""
    return RANK_PID in os.environ


def trial() -> ScriptTrial:
    """The trial this script is to run.

    Raises:
        AdapterError: no worker started this process.
    """
    if not in_trial():
        raise AdapterError(
            "adapter.trial() works only in a script that a worker runs; start one with `--allow-script NAME=COMMAND`, "
            "or ask adapter.in_trial() first"
        )
    if _current is None or _current.is_elsewhere:
        raise AdapterError(
            f"adapter.trial() was called in process {os.getpid()}, but the worker started process "
            f"{os.environ[RANK_PID]} as this rank; the worker starts all ranks: drop torch.multiprocessing.spawn or fork"
        )
    return _current


def hand_in(current: ScriptTrial) -> None:
    """For `workers.rank.training.scripted`: what `trial()` returns in this process."""
    global _current
    _current = current
    os.environ[RANK_PID] = str(os.getpid())

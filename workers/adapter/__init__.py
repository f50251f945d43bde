"""Makes a training loop of the user's own a trial, and the same script a training with what was found:
`trial = adapter.configuration(…)`, `trial.prepare(model)`, `trial.report(loss)`.

Importing it has no effect. What measures lives in `workers.rank.training.user_script`, which starts the script and hands the
trial in here; nothing here imports it. What a script gets outside of a trial is in `production`.
"""

import os
from pathlib import Path

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import BACKENDS, Backend
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.adapter import production
from shardtune.workers.adapter.trial import AdapterError, Rejected, ScriptTrial, Stopped

__all__ = ["AdapterError", "Rejected", "ScriptTrial", "Stopped", "configuration", "in_trial", "trial"]

RANK_PID = "SHARDTUNE_RANK_PID"
"""Environment variable: the process that the worker started as this rank."""

_current: ScriptTrial | None = None


def in_trial() -> bool:
    """Whether a worker runs this script as a trial."""
    return RANK_PID in os.environ


def configuration(
    backends: tuple[Backend, ...] = BACKENDS,
    default: TrialConfig | None = None,
    workload: Workload | None = None,
    file: Path | str = "best/config.json",
) -> ScriptTrial:
    """What this script is to train with: the trial's configuration in a trial, else what is known to be best.

    Outside of a trial the service is asked (SHARDTUNE_SERVICE_URL and SHARDTUNE_TARGET_KEY), then `file` is read, and where
    neither has a configuration that this job can run, `default` counts with `workload`. Which it was is in
    `ScriptTrial.source`, and rank 0 says it on stderr.

    `backends`: those that the script can apply; nothing else is tried or taken.

    Raises:
        AdapterError: nothing is known, and no default was given.
        Rejected: in a trial, the configuration is of another backend.
    """
    if in_trial():
        current = trial()
        current.takes(backends)
        return current
    return production.configuration(backends, default, workload, Path(file))


def trial() -> ScriptTrial:
    """The trial this script is to run; `configuration` also works where there is none.

    Raises:
        AdapterError: no worker started this process.
    """
    if not in_trial():
        raise AdapterError(
            "adapter.trial() works only in a script that a worker runs; start one with `--allow-script NAME=COMMAND`, "
            "or ask adapter.configuration(…), which has an answer outside of trials, too"
        )
    if _current is None or _current.is_elsewhere:
        raise AdapterError(
            f"adapter.trial() was called in process {os.getpid()}, but the worker started process "
            f"{os.environ[RANK_PID]} as this rank; the worker starts all ranks: drop torch.multiprocessing.spawn or fork"
        )
    return _current


def hand_in(current: ScriptTrial) -> None:
    """For `workers.rank.training.user_script`: what `trial()` returns in this process."""
    global _current
    _current = current
    os.environ[RANK_PID] = str(os.getpid())

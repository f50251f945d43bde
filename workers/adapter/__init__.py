"""Adapter through which a user's own training script runs as a trial, and outside of trials trains with the best known
configuration.

A script calls `trial = adapter.configuration(…)`, `trial.prepare(model)` and `trial.report(loss)`.

Importing it has no effect. `workers.rank.training.user_script` starts the script, hands the trial in here and measures; nothing here
imports it. `production` has the configurations for scripts outside of a trial.
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
"""Environment variable with the pid of the process that the worker started as this rank."""

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
    """Configuration for this script to apply: the trial's when a worker runs the script as a trial, else the best known
    one.

    Outside of a trial the configuration comes from the service (SHARDTUNE_SERVICE_URL and SHARDTUNE_TARGET_KEY), else
    from `file`. If neither has a configuration that this job can run, `default` is used with `workload`.
    `ScriptTrial.source` names the source, and rank 0 prints it on stderr.

    `backends` are the backends that the script can apply; configurations of other backends are not used.

    Raises:
        AdapterError: no configuration is known, and no default was given.
        Rejected: inside of a trial, the configuration is of another backend.
    """
    if in_trial():
        current = trial()
        current.config_for(backends)
        return current
    return production.configuration(backends, default, workload, Path(file))


def trial() -> ScriptTrial:
    """Trial that this script runs; unlike `configuration`, only available inside of a trial.

    Raises:
        AdapterError: no worker started this process.
    """
    if not in_trial():
        raise AdapterError(
            "adapter.trial() works only in a script that a worker runs; start one with `--allow-script NAME=COMMAND`, "
            "or call adapter.configuration(…), which also works outside of trials"
        )
    if _current is None or _current.is_forked_copy:
        raise AdapterError(
            f"adapter.trial() was called in process {os.getpid()}, but the worker started process "
            f"{os.environ[RANK_PID]} as this rank; the worker starts all ranks: drop torch.multiprocessing.spawn or fork"
        )
    return _current


def hand_in(current: ScriptTrial) -> None:
    """Set the trial that `trial()` returns in this process. `workers.rank.training.user_script` calls this before it runs the
    script."""
    global _current
    _current = current
    os.environ[RANK_PID] = str(os.getpid())

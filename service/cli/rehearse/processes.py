"""Rehearse a trial in child processes on this machine, each bounded in time and memory; the command line itself never
loads torch."""

import importlib.util
import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.trials.leases import RehearsalTask, TrialTask
from shardtune.api_schemas.trials.rehearsals import (
    Rehearsal,
    RehearsalAnswer,
    RehearsalProblem,
    RehearsedRank,
)
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.missing_extras import install_command
from shardtune.service.cli.predict import bounded_process
from shardtune.service.cli.processes import MODULE
from shardtune.tuner.projection import rehearsal

LIMIT_S = 600.0
"""Maximum seconds for a process that rehearses one rank; it usually needs 20 to 60 seconds of a CPU core."""
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
"""Environment variables of a rehearsal's process: it must not take GPU memory, and needs no threads because its
tensors hold no values."""


def require_torch() -> None:
    """Check that torch and transformers, which build the model in a rehearsal, are installed.

    Raises:
        InputError: names the extra to install.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"this command needs the package torch, which is not installed; run {install_command('worker')}, or run this "
            "where a worker runs"
        )


def rehearse(
    trial: TrialTask, predicted_gib: float | None, available_gib: float | None = None, limit_s: float = LIMIT_S
) -> Rehearsal:
    """Rehearse a trial: without GPUs, build the ranks that need the most memory, each with two numbers of model
    blocks, from which the memory of the whole model is extrapolated.

    `available_gib`: memory that a GPU may use, which the peak must not exceed; if None, the peak is not compared.
    """
    seen: list[RehearsedRank] = []
    tasks = rehearsal.plan(trial)
    if isinstance(tasks, RehearsalProblem):
        return rehearsal.combine(trial, (), tasks, predicted_gib)
    for number, task in enumerate(tasks, start=1):
        sys.stderr.write(
            f"rehearsing {trial.config.describe()} on {counted(trial.cluster.world_size, 'rank')}: "
            f"process {number} of {len(tasks)}\n"
        )
        answer = ask(task, limit_s)
        if answer.seen is None:
            return rehearsal.combine(trial, (), answer.problem, predicted_gib)
        seen.append(answer.seen)
    return rehearsal.combine(trial, seen, None, predicted_gib, available_gib)


def ask(task: RehearsalTask, limit_s: float) -> RehearsalAnswer:
    """Rehearse one rank (build its part of the model without GPUs) in a process of its own and return the result; a
    timeout or a crash is returned as a problem."""
    command = [*MODULE, "shardtune.workers.rank.rehearsal"]
    try:
        code, output, errors = bounded_process.run(command, task.model_dump_json(), limit_s, _ENVIRONMENT)
    except subprocess.TimeoutExpired:
        message = f"rehearsing rank {task.rank} took more than {limit_s:g} s; allow more by --limit-s"
        return RehearsalAnswer(problem=RehearsalProblem(code="time", message=message))
    try:
        # The last line alone: torch and transformers may print warnings before it.
        return RehearsalAnswer.model_validate_json(output.strip().rpartition("\n")[2])
    except ValidationError:
        ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        cause = (errors.strip().splitlines() or ["it printed no error"])[-1][:300]
        message = f"the rehearsing process ended {ended} without an answer: {cause}"
        return RehearsalAnswer(problem=RehearsalProblem(code="crashed", message=message))

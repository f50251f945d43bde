"""Run a trial of `tune` again under torch's profiler, on this machine, with the worker's own launcher."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.leases import TraceTask, TrialTask
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli.connection import connect_or_start, find_study
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.processes import MODULE
from shardtune.service.client import ServiceClient
from shardtune.tuner.objective import available_gib

if TYPE_CHECKING:
    from shardtune.service.cli import environment
    from shardtune.service.leasing import run_limits
    from shardtune.service.settings import Settings
else:
    # `explain --trace` loads this module, and needs none of the service's packages.
    environment = LazyModule("shardtune.service.cli.environment")
    run_limits = LazyModule("shardtune.service.leasing.run_limits")

_TRIAL_FAILED = 3
_BESIDE_TRIAL_S = 900.0
"""Seconds that `run-trial` may take beside the trial, such as to start the processes that import torch."""
_SHOWN_LINES = 8


class RecordedTrial(NamedTuple):
    """Profiler traces of a trial, with the trial's study, the task that ran the trial, and the measured rates of its
    machine."""

    traced: ProfilerRecording
    study: Study
    task: TrialTask
    measured: MeasuredHardware | None
    """Computing and communication rates that a worker of the study's cluster measured; None if no worker measured
    them."""


def record_trial(study: str, number: int | None, state_dir: Path, worker_options: Sequence[str]) -> RecordedTrial:
    """Run a trial again under the profiler, without changing the study. If `number` is None, run the recommended
    trial.

    Raises:
        InputError: there is no such study or trial, or the trial needs ranks on other machines.
        PlatformFailure: the run failed; the message holds the last lines of its output.
    """
    with connect_or_start(None, state_dir) as client:
        stored = find_study(client, study)
        trial = _find_trial(client, stored, number)
        measured = _measured_hardware(client, stored)
    task = _task_of_trial(stored, trial)
    if task.cluster.nodes > 1:
        raise InputError(
            f"study ({stored.study_id}) trains over {task.cluster.nodes} hosts, each with its own traces; record them in your "
            "job, copy them into one folder and give it to --trace"
        )
    sys.stderr.write(f"running {task.config.describe()} once more, under the profiler\n")
    # A study's id may be the user's choice: it becomes the name of a folder.
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"trace-{stored.study_id}-{'best' if number is None else number}")
    limit_s = deadline_s(environment.read_settings(), trial, task)
    return RecordedTrial(_run_profiled(task, limit_s, name, state_dir, worker_options), stored, task, measured)


def _find_trial(client: ServiceClient, study: Study, number: int | None) -> Trial:
    """Return the trial with a number, or the recommended one; it may have been infeasible."""
    chosen = client.best(study.study_id).best.trial_number if number is None else number
    trials = client.trials(study.study_id)
    trial = next((trial for trial in trials if trial.number == chosen), None)
    if trial is None:
        raise InputError(
            f"--trial ({chosen}) is not a trial of study {study.study_id}, which has {len(trials)}, numbered from 0"
        )
    return trial


def deadline_s(settings: Settings, trial: Trial, task: TrialTask) -> float:
    """Return the time limit in seconds of a trial's run under the profiler: that of the same run by the service."""
    speeds = [trial.tokens_per_s_per_gpu, None if trial.prediction is None else trial.prediction.tokens_per_s_per_gpu]
    # The slower of the two: a limit must end no run that would succeed.
    slowest = min((speed for speed in speeds if speed), default=None)
    step_s = None if slowest is None else task.workload.tokens_per_step / slowest / task.cluster.world_size
    return run_limits.of_trace(settings, TraceTask.of(task), step_s).deadline_s


def _task_of_trial(study: Study, trial: Trial) -> TrialTask:
    """Return the task that runs a trial again."""
    # CPU ranks enforce no limit: a trial over it runs to its end, and the diagnosis shows what it took.
    on_cpu = study.cluster.device == "cpu"
    return TrialTask(
        model=study.spec.model,
        workload=study.spec.workload,
        cluster=study.cluster,
        config=trial.config,
        memory_limit_gib=available_gib(study.cluster, study.spec.objective) if on_cpu else None,
        leaves_parameters_unused=study.model_summary is not None and study.model_summary.leaves_parameters_unused,
    )


def _measured_hardware(client: ServiceClient, study: Study) -> MeasuredHardware | None:
    alike = [report.inventory.measured for report in client.workers() if report.inventory.cluster == study.cluster]
    return next((report for report in alike if report is not None), None)


def _run_profiled(
    task: TrialTask, limit_s: float, name: str, state_dir: Path, worker_options: Sequence[str]
) -> ProfilerRecording:
    command = [*MODULE, "shardtune.workers", "run-trial", "-", "--trace", "--folder", name, "--json"]
    command += ["--work-dir", str(state_dir / "worker"), "--deadline-s", f"{limit_s:.1f}", *worker_options]
    try:
        process = subprocess.run(
            command,
            input=task.model_dump_json(),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s + _BESIDE_TRIAL_S,
        )
    except subprocess.TimeoutExpired as error:
        raise PlatformFailure(
            f"the run of {task.config.describe()} under the profiler did not end within {error.timeout:.0f} s and was ended"
        ) from None
    try:
        return ProfilerRecording.model_validate_json(process.stdout)
    except ValidationError:
        tail = [f"  {line}" for line in (process.stderr + process.stdout).strip().splitlines()[-_SHOWN_LINES:]]
        end = "failed" if process.returncode == _TRIAL_FAILED else f"ended with exit code {process.returncode}"
        raise PlatformFailure(f"the run of {task.config.describe()} under the profiler {end}:", *tail) from None

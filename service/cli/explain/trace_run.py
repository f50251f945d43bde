"""Run a trial of a study of `tune` again under torch's profiler, on this machine, with the worker's own launcher."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.diagnosis import Traced
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.service.cli.connection import connected, study_named
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.processes import MODULE
from shardtune.service.client import ServiceClient
from shardtune.tuner.objective import available_gib

_TRIAL_FAILED = 3
_SHOWN_LINES = 8


class Recorded(NamedTuple):
    """The traces, and what is known of the trial that left them."""

    traced: Traced
    study: Study
    task: TrialTask
    measured: MeasuredHardware | None
    """What a worker of the study's cluster found its machine to reach; None where none did."""


def record(study: str, number: int | None, state_dir: Path, worker_options: Sequence[str]) -> Recorded:
    """Record some steps of a trial by its number, None: of the answer; the study stays as it is.

    Raises:
        InputError: there is no such study or trial, or its ranks are not all on this machine.
        PlatformFailure: the run did not come to its end; the message has its last words.
    """
    with connected(None, state_dir) as client:
        stored = study_named(client, study)
        task = _task(client, stored, number)
        measured = _measured(client, stored)
    if task.cluster.nodes > 1:
        raise InputError(
            f"study ({stored.study_id}) trains over {task.cluster.nodes} hosts, whose traces lie apart; record them in your "
            "job and give --trace the folder with all of them"
        )
    sys.stderr.write(f"running {task.config.describe()} once more, under the profiler\n")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"trace-{stored.study_id}-{'best' if number is None else number}")
    return Recorded(_run(task, name, state_dir, worker_options), stored, task, measured)


def _task(client: ServiceClient, study: Study, number: int | None) -> TrialTask:
    """Also of a trial that took more memory than it may: on CPU ranks it runs, and what it took is told."""
    chosen = client.best(study.study_id).best.trial_number if number is None else number
    trials = client.trials(study.study_id)
    config = next((one.config for one in trials if one.number == chosen), None)
    if config is None:
        raise InputError(f"--trial ({chosen}) is none of study {study.study_id}, which has {len(trials)}, from 0 on")
    on_cpu = study.cluster.device == "cpu"
    return TrialTask(
        model=study.spec.model,
        workload=study.spec.workload,
        cluster=study.cluster,
        config=config,
        memory_limit_gib=available_gib(study.cluster, study.spec.objective) if on_cpu else None,
    )


def _measured(client: ServiceClient, study: Study) -> MeasuredHardware | None:
    alike = [one.inventory.measured for one in client.workers() if one.inventory.cluster == study.cluster]
    return next((one for one in alike if one is not None), None)


def _run(task: TrialTask, name: str, state_dir: Path, worker_options: Sequence[str]) -> Traced:
    command = [*MODULE, "shardtune.workers", "run-trial", "-", "--trace", "--folder", name, "--json"]
    command += ["--work-dir", str(state_dir / "worker"), *worker_options]
    done = subprocess.run(command, input=task.model_dump_json(), capture_output=True, text=True, check=False)
    try:
        return Traced.model_validate_json(done.stdout)
    except ValidationError:
        tail = [f"  {line}" for line in (done.stderr + done.stdout).strip().splitlines()[-_SHOWN_LINES:]]
        how = "failed" if done.returncode == _TRIAL_FAILED else f"ended with exit code {done.returncode}"
        raise PlatformFailure(f"the run of {task.config.describe()} under the profiler {how}:", *tail) from None

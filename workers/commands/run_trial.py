"""Command `run-trial FILE`, which runs one task without a service."""

import argparse
import json
import sys
from pathlib import Path

from pydantic import TypeAdapter

from shardtune.api_schemas.access import regular_file
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TargetRehearsalTask, Task, TraceTask, TrialTask
from shardtune.workers.agent.attempt import AttemptResult, Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.commands import human_output
from shardtune.workers.commands.agent import workplace
from shardtune.workers.commands.exit_codes import DONE, INTERRUPTED, TRIAL_FAILED
from shardtune.workers.commands.host_pool import open_hosts
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.trial_dir import TrialDir

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


def run(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Run one task from a file and print its result."""
    task = trace_task(read_task(options.file)) if options.trace else read_task(options.file)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    allowed.check(task.model)
    if not isinstance(task, ModelSummaryTask | TargetRehearsalTask):
        nodes = task.cluster.nodes if settings.launcher != "local" else None
        ranks = task.cluster.gpus_per_node if nodes else task.cluster.world_size
        settings = settings.model_copy(update={"ranks": ranks, "nodes": nodes})
    interrupt = Interrupt().install()
    # No operators are built here: the trial builds those that it needs, and most need none.
    with open_hosts(settings, allowed, interrupt, builds=False) as hosts:
        if hosts is None:
            return INTERRUPTED
        hosts.launcher.require_fit(lambda: bool(interrupt))
        attempted = _run_attempt(workplace(settings, hosts, allowed), task, options, interrupt)
    if attempted is None:
        return INTERRUPTED
    if attempted.log_tail:
        print(attempted.log_tail, file=sys.stderr)
    print(attempted.result.model_dump_json() if options.json else human_output.outcome(attempted.result))
    return TRIAL_FAILED if isinstance(attempted.result, Failure) else DONE


def _run_attempt(
    workplace: Workplace, task: Task, options: argparse.Namespace, interrupt: Interrupt
) -> AttemptResult | None:
    return run_attempt(
        workplace,
        task,
        lambda: TrialDir.create(
            workplace.work_dir, options.folder, task, workplace.fingerprint, workplace.min_free_gib
        ),
        RunLimits(options.deadline_s, options.no_progress_s),
        lambda: interrupt.reason,
    )


def trace_task(task: Task) -> TraceTask:
    """Turn a trial's task into a trace task, which records the trial under torch's profiler.

    Raises:
        ValueError: the task is no trial.
    """
    if not isinstance(task, TrialTask):
        raise ValueError(
            f"--trace: kind ({task.kind}) must be trial; give the file of a trial, such as best/config.json"
        )
    return TraceTask.of(task)


def read_task(path: Path) -> Task:
    """Read a task from a file, or from stdin for `-`; a task without the key `kind` is a trial.

    Raises:
        ValueError: the file is not JSON, or not a task.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else regular_file.read_text(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"file ({path}) cannot be read: {error}; give a trial's JSON file") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"file ({path}) is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"file ({path}) must hold one JSON object with model, workload, cluster and config")
    return _TASK.validate_python({"kind": "trial", **content})

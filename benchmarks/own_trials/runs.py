"""Run configurations on CPU ranks by the worker's own launcher and rank code, and append their outcomes to a file."""

import csv
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.own_trials.scores import Row
from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, Task, TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.attempt import AttemptResult, Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.machine import library_probe
from shardtune.workers.machine.conditions import HostObserver
from shardtune.workers.machine.inventory import find_gpus, fingerprint
from shardtune.workers.trial_dir import TrialDir

PLAN = MeasurePlan(parity_steps=2, max_warmup_steps=1, window_steps=1, min_windows=4, max_windows=4, min_measure_s=0)
_LIMITS = RunLimits(deadline_s=240, no_progress_s=200)


@contextmanager
def workplace(folder: Path, ranks: int = 4) -> Iterator[Workplace]:
    """A fork server of so many CPU ranks at most; one thread each, as on a machine that others use."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = LocalLauncher(
        environment, f"own-trials-{os.getpid()}", folder / "host.log", 600, observer=HostObserver(None)
    )
    try:
        gpus = find_gpus().for_ranks(2)
        actual_fingerprint = fingerprint(gpus, library_probe.of_prepared(launcher.prepare(lambda: False), gpus))
        yield Workplace(folder, launcher, actual_fingerprint, ranks=ranks, peak_flops=None, min_free_gib=1)
    finally:
        launcher.close()


def execute(place: Workplace, task: TrialTask | ModelSummaryTask, number: int) -> Measurement | ModelSummary | Failure:
    """Run a task to its outcome."""
    result = attempted(place, task, number).result
    assert not isinstance(result, ResumeMeasurement | ProfilerRecording | RehearsalReport)
    return result


def attempted(place: Workplace, task: Task, number: int) -> AttemptResult:
    """Run any task, in the folder of this number."""
    done = run_attempt(
        place,
        task,
        lambda: TrialDir.create(place.work_dir, f"run-{number}", task, place.fingerprint, place.min_free_gib),
        _LIMITS,
        lambda: None,
    )
    assert done is not None
    return done


def text_of(config: TrialConfig) -> str:
    """Fields that differ from the defaults, and the kind of strategy, as JSON."""
    plain = config.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({**plain, "strategy": {"kind": config.backend, **plain["strategy"]}})


def outcome(result: Measurement | Failure, actual_fingerprint: Fingerprint) -> Row:
    """The measured columns of one line."""
    row = {"fingerprint": actual_fingerprint.content_key()}
    if isinstance(result, Failure):
        return row | {"failure": f"{result.kind}: {result.message[:200]}"}
    peak = result.memory.peak_allocated_gib
    return row | {
        "peak_allocated_mib": f"{peak * GIB / 2**20:.3f}" if peak is not None else "",
        "step_time_s": f"{result.step_time_s:.5f}",
        "half_width_s": f"{result.step_time_half_width_s:.5f}",
    }


def append(path: Path, columns: tuple[str, ...], row: Row) -> None:
    """Add a line, and the header before the first."""
    is_new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, columns, restval="")
        if is_new:
            writer.writeheader()
        writer.writerow(row)

"""Measure a table here: configurations of a study's space, drawn evenly, run by the worker's own launcher and ranks.

Each round runs every configuration once, in an order of its own, so that what else the machine does falls on no kind of
them; what is there is not run again, so a recording that was stopped goes on. A run beside which other programs took the
cores is repeated, by the rule that holds for a study's runs.
"""

import csv
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.own_trials.runs import append, execute, outcome, text_of, workplace
from benchmarks.search.table import COLUMNS
from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport, Inventory
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.study_file import read_json_object, validate_study
from shardtune.tuner.search.guided_sampler.pool import sample_evenly
from shardtune.tuner.search.seeds import documented_defaults
from shardtune.tuner.search.space import Space, build
from shardtune.tuner.verdict import disturbance
from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.machine import hardware_speed

PLAN = MeasurePlan(parity_steps=2, max_warmup_steps=2, window_steps=1, min_windows=3, max_windows=16, max_measure_s=2.0)
_EVERYTHING = 5_000


@dataclass(frozen=True)
class Recording:
    """Plan of a recording: configurations and time."""

    folder: Path
    study: Path | None
    configurations: int
    rounds: int
    minutes: float


def record(recording: Recording) -> None:
    """Measure what the folder does not hold yet, line by line; no run begins after the minutes are over.

    Raises:
        InputError: no study file, or one that does not say its cluster.
        PlatformFailure: the model or the machine could not be profiled.
    """
    recording.folder.mkdir(parents=True, exist_ok=True)
    study_file = recording.folder / "study.json"
    if not study_file.exists():
        if recording.study is None:
            raise InputError("--study (missing): name the study file whose space is to be measured")
        study_file.write_text(recording.study.read_text())
    request = validate_study(read_json_object(study_file), recording.folder)
    if not isinstance(request.cluster, Cluster) or request.cluster.device != "cpu":
        raise InputError(
            f"{study_file}: cluster must spell out CPU ranks of this machine (device, gpus_per_node, memory_gib)"
        )
    with tempfile.TemporaryDirectory() as work, workplace(Path(work), request.cluster.gpus_per_node) as place:
        hardware = _hardware(recording.folder, place, request.cluster)
        devices = [DeviceDtypes.from_fingerprint(hardware.fingerprint, hardware.measured.matmul_flops)]
        spec = request.with_precision(decide(request.workload.precision, devices)[0])
        model_summary = _model_summary(recording.folder, place, spec)
        space = build(spec.workload, request.cluster, model_summary, spec.space)
        _measure(
            recording, place, spec, request.cluster, _configurations(space, request.cluster, recording.configurations)
        )


def _hardware(folder: Path, place: Workplace, cluster: Cluster) -> HardwareReport:
    path = folder / "hardware.json"
    if not path.exists():
        offered = Inventory(cluster=cluster, fingerprint=place.fingerprint)
        measurement = hardware_speed.measure(place.launcher, offered, place.work_dir, lambda: False)
        assert measurement is not None
        path.write_text(measurement.model_dump_json(indent=1) + "\n")
    return HardwareReport.model_validate_json(path.read_bytes())


def _model_summary(folder: Path, place: Workplace, spec: StudySpec) -> ModelSummary:
    path = folder / "profile.json"
    if not path.exists():
        actual_outcome = execute(place, ModelSummaryTask(model=spec.model, workload=spec.workload), 0)
        if not isinstance(actual_outcome, ModelSummary):
            raise PlatformFailure(f"model ({spec.model.name}) could not be profiled: {actual_outcome}")
        path.write_text(actual_outcome.model_dump_json(indent=1) + "\n")
    return ModelSummary.model_validate_json(path.read_bytes())


def _configurations(space: Space, cluster: Cluster, count: int) -> list[TrialConfig]:
    """The documented defaults, the corners, and an even draw; all of a space that is no larger."""
    if space.size(count + 1) <= count:
        return list(space.enumerate())
    defaults = [
        actual_config
        for documented_default in documented_defaults(cluster)
        if (actual_config := space.within_limits(documented_default)) is not None
    ]
    drawn = (*defaults, *space.lightest(), *sample_evenly(space, _EVERYTHING))
    return list(islice(dict.fromkeys(space.canonical(config) for config in drawn), count))


def _measure(
    recording: Recording, place: Workplace, spec: StudySpec, cluster: Cluster, configs: list[TrialConfig]
) -> None:
    path = recording.folder / "runs.csv"
    done = set()
    if path.exists():
        with path.open(newline="") as lines:
            done = {(row["config"], row["round"]) for row in csv.DictReader(lines)}
    end = time.monotonic() + 60 * recording.minutes
    for number in range(1, recording.rounds + 1):
        order = [config for config in configs if (text_of(config), str(number)) not in done]
        random.Random(number).shuffle(order)
        for index, config in enumerate(order):
            if time.monotonic() > end:
                _say(f"round {number}: {len(order) - index} configurations are left")
                return
            task = TrialTask(model=spec.model, workload=spec.workload, cluster=cluster, config=config, plan=PLAN)
            result, seconds, _ = run_undisturbed(place, task, 10_000 * number + 10 * index)
            columns = {key: value for key, value in outcome(result, place.fingerprint).items() if key in COLUMNS}
            wall = f"{seconds:.2f}"
            append(path, COLUMNS, {"config": text_of(config), "round": str(number), "wall_s": wall, **columns})
            _say(f"round {number}, {index + 1} of {len(order)}: {config.describe()}: {columns}")


def run_undisturbed(place: Workplace, task: TrialTask, number: int) -> tuple[Measurement | Failure, float, str | None]:
    """A run's outcome, its seconds, and why it is disturbed; repeated, as a study does, while other programs take the
    cores."""
    repeat = 0
    while True:
        begun = time.monotonic()
        result = execute(place, task, number + repeat)
        seconds = time.monotonic() - begun
        assert not isinstance(result, ModelSummary)
        why = disturbance.reason(result, task.cluster, os.cpu_count) if isinstance(result, Measurement) else None
        if why is None or repeat == disturbance.MAX_REPEATS:
            return result, seconds, why
        _say(f"repeated: {why}")
        repeat += 1


def _say(line: str) -> None:
    """Print to stderr: stdout is for a command's result."""
    print(line, file=sys.stderr, flush=True)

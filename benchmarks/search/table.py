"""Read a table of measured configurations: a folder with `study.json`, `profile.json`, `hardware.json` and `runs.csv`.

Every error is an `InputError` whose lines name field, value and remedy.
"""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from benchmarks.search.measured import MeasuredTable, Run
from benchmarks.search.table_space import TableSpace
from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.trials.trial import Rejection
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.study_file import error_lines, read_json_object, validate_study
from shardtune.tuner.history import Observation
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import learning, memory_gate
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.prediction.traced_shape import of_study
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis
from shardtune.tuner.search.seeds import seed_configs
from shardtune.tuner.search.space import Space, build

COLUMNS = ("config", "round", "step_time_s", "half_width_s", "peak_allocated_mib", "failure", "wall_s")
_NEEDED = ("config", "step_time_s", "failure")
_MIB_PER_GIB = 1024.0
T = TypeVar("T", bound=Schema)


@dataclass(frozen=True)
class Table(MeasuredTable):
    """A folder, read."""

    spec: StudySpec
    hardware: HardwareReport
    model_summary: ModelSummary
    shape: ModelShape

    @property
    def limit_gib(self) -> float:
        """GiB that a rank may use."""
        return available_gib(self.cluster, self.spec.objective)

    def pool(self) -> Pool:
        """Predictions of the product's predictor."""
        basis = PredictionBasis(self.shape, self.workload, self.cluster, self.hardware.measured)
        return Pool(self.space, basis, self.space.measured)

    def compared(self, history: Sequence[Observation]) -> list[ComparedRun]:
        """Measured trials of a search, beside their predictions."""
        measured = [(obs.config, obs.measurement) for obs in history if obs.measurement is not None]
        group = learning.MeasuredTrials(
            self.shape,
            self.workload,
            self.cluster,
            [config for config, _ in measured],
            [measurement for _, measurement in measured],
            self.hardware.measured,
            self.name,
        )
        return learning.compare(group) if measured else []

    def memory(self, history: Sequence[Observation]) -> MemoryCalibration:
        """Correction of predicted peaks by a study's own trials."""
        return calibration_choice.memory_calibration(learning.learn(self.compared(history)), self.shape)

    def gate(self, config: TrialConfig, memory: MemoryCalibration) -> Rejection | None:
        """The service's."""
        return memory_gate.reject_if_too_large(
            config, self.shape, self.workload, self.cluster, self.spec.objective, memory
        )


def read(folder: Path) -> Table:
    """The table in a folder.

    Raises:
        InputError: a file is missing or cannot be read, or a configuration is not in the study's space.
    """
    for name in ("study.json", "profile.json", "hardware.json", "runs.csv"):
        if not (folder / name).is_file():
            raise InputError(
                f"--table ({folder}) has no {name}; a table is a folder with study.json, profile.json, hardware.json "
                "and runs.csv, as --record writes them"
            )
    hardware, model_summary = (
        _model(HardwareReport, folder / "hardware.json"),
        _model(ModelSummary, folder / "profile.json"),
    )
    request = validate_study(_recorded_study(folder / "study.json"), folder)
    cluster = request.cluster if isinstance(request.cluster, Cluster) else hardware.cluster
    devices = [DeviceDtypes.from_fingerprint(hardware.fingerprint, hardware.measured.matmul_flops)]
    spec = request.with_precision(decide(request.workload.precision, devices)[0])
    shape = of_study(spec.model, model_summary, spec.workload.adapter)
    if shape is None:
        raise InputError(
            f"{folder / 'study.json'}: model ({spec.model.name}) is the user's own code, which nothing predicts"
        )
    try:
        space = build(spec.workload, cluster, model_summary, spec.space)
        measured = _runs(folder / "runs.csv")
        keyed = {space.canonical(config): runs for config, runs in measured.items()}
        inputs = [spec.baseline, *(config for config, _ in seed_configs(space, cluster, None))]
        for config in measured:
            if config not in inputs:
                _check_inside(space, config, folder)
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from None
    by_key: dict[str, tuple[Run, ...]] = defaultdict(tuple)
    for config, runs in measured.items():
        by_key[space.key(config)] += tuple(runs)
    table_space = TableSpace(space.domains, space.limits, tuple(dict.fromkeys(keyed)))
    table = Table(folder.name, spec.workload, cluster, table_space, dict(by_key), spec, hardware, model_summary, shape)
    if not table.seconds:
        raise InputError(f"{folder / 'runs.csv'}: no configuration ran; record at least one that does")
    return table


def _recorded_study(path: Path) -> dict[str, Any]:
    """Read a table's study file, whose workload may name its precision by the field's former name."""
    study = read_json_object(path)
    workload = study.get("workload")
    # Tables that were recorded before the rename say `recipe`. To record one again takes hours of a quiet machine.
    if isinstance(workload, dict) and "recipe" in workload:
        current = {"precision" if name == "recipe" else name: value for name, value in workload.items()}
        return {**study, "workload": current}
    return study


def _check_inside(space: Space, config: TrialConfig, folder: Path) -> None:
    """Values of the study's space. Its starting configurations may have others."""
    try:
        space.sampler_answers(config, exact=True)
    except ValueError as error:
        raise InputError(
            f"{folder / 'runs.csv'}: config ({config.describe()}) is outside the study's space: {error}; "
            "drop its lines, or widen space in study.json"
        ) from None


def _model(kind: type[T], path: Path) -> T:
    try:
        return kind.model_validate(read_json_object(path))
    except ValidationError as error:
        raise InputError(*(f"{path}: {line}" for line in error_lines(error))) from None


def _runs(path: Path) -> dict[TrialConfig, list[Run]]:
    actual_defaultdict: dict[TrialConfig, list[Run]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        if missing := [name for name in _NEEDED if name not in (reader.fieldnames or ())]:
            raise InputError(f"{path}: column {missing[0]} (missing); the columns are {', '.join(COLUMNS)}")
        for number, row in enumerate(reader, start=2):
            config = config_of(row["config"], f"{path}: line {number}")
            actual_defaultdict[config].append(_run(row, f"{path}: line {number}"))
    if not actual_defaultdict:
        raise InputError(f"{path} has no runs; record some with --record")
    return actual_defaultdict


def config_of(text: str, where: str) -> TrialConfig:
    """A configuration from what differs from the defaults.

    Raises:
        InputError: it is no JSON, or no configuration.
    """
    try:
        return TrialConfig.model_validate(json.loads(text))
    except ValidationError as error:
        raise InputError(*(f"{where}: config.{line}" for line in error_lines(error))) from None
    except ValueError as error:
        raise InputError(f"{where}: config ({text[:60]!r}) is not JSON ({error}); quote it as CSV does") from None


def _run(row: dict[str, str], where: str) -> Run:
    failure = (row["failure"] or "").strip()
    seconds = None if failure else _number(row, "step_time_s", where)
    if seconds is None and not failure:
        raise InputError(f"{where}: step_time_s (blank) needs a value where failure is blank; give one of them")
    peak = _number(row, "peak_allocated_mib", where)
    return Run(
        step_time_s=seconds,
        half_width_s=_number(row, "half_width_s", where) or 0.0,
        peak_gib=None if peak is None else peak / _MIB_PER_GIB,
        failure=failure,
        wall_s=_number(row, "wall_s", where),
    )


def _number(row: dict[str, str], field: str, where: str) -> float | None:
    text = (row.get(field) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0) or (field == "step_time_s" and value == 0):
        raise InputError(f"{where}: {field} ({text!r}) is not a positive number; correct it or leave it blank")
    return value

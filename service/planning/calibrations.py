"""What the stored runs of a fingerprint teach the predictor; each is read once, and held against its prediction once.

A row that cannot be read (edited by hand, or of another version) is left out with a line in the log: it belongs to
another study, and must not keep this one from its next lease.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy.orm import Session

from shardtune.api_schemas.hardware import MeasuredHardware
from shardtune.api_schemas.system_studies import SystemStudyKind
from shardtune.db.queries import studies, trials, workers
from shardtune.db.tables.studies import RunRow, StudyRow
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.tuner.prediction import learning, traced_shape
from shardtune.tuner.prediction.calibration import NOTHING_LEARNT, Calibrations
from shardtune.tuner.prediction.learning import ComparedRun, MeasuredTrials

log = logging.getLogger(__name__)

MOST_RUNS = 400
"""The newest ones count; enough to tell the factors apart."""


@dataclass(frozen=True)
class Experience:
    """What is known of a fingerprint beyond the catalogue."""

    calibrations: Calibrations = NOTHING_LEARNT
    hardware: MeasuredHardware | None = None
    runs: tuple[ComparedRun, ...] = ()
    """Of all its studies, beside what was predicted for them."""


def of(planner_cache: PlannerCache, session: Session, fingerprint_key: str | None, project_id: str) -> Experience:
    """From all studies measured on a fingerprint; nothing before a study's first lease.

    A project learns from its own workers and from those that serve every project: what the workers of another one say
    they have measured is for that one alone.
    """
    if fingerprint_key is None:
        return Experience()
    hardware = workers.measured_hardware(session, fingerprint_key, project_id)
    run_ids = trials.measured_ids(session, fingerprint_key, project_id, MOST_RUNS)

    def compare(new: Sequence[str]) -> dict[str, ComparedRun]:
        return _compared(session, project_id, hardware, new)

    name = f"{fingerprint_key} {project_id} {hardware.content_key() if hardware else ''}"
    learnt = planner_cache.learnt(name, run_ids, compare)
    return Experience(learnt.calibrations, hardware, learnt.known)


def _is_repetition(study: StudyRow) -> bool:
    """Canaries repeat one configuration, which would outweigh all others."""
    return study.system_study is not None and study.system_study.kind == SystemStudyKind.CANARY


def _compared(
    session: Session, project_id: str, hardware: MeasuredHardware | None, run_ids: Sequence[str]
) -> dict[str, ComparedRun]:
    """Runs beside their predictions, by id; those that teach nothing are left out."""
    by_study: dict[str, list[RunRow]] = defaultdict(list)
    for run in _readable(session, run_ids):
        by_study[run.study_id].append(run)
    # What a measurement is held against rests on the model's profile, which a worker reports as well.
    profiled_for = trials.profiled_for(session, by_study)
    found: dict[str, ComparedRun] = {}
    for study_id, runs in by_study.items():
        if profiled_for.get(study_id, project_id) != project_id:
            continue
        study = _study(session, study_id)
        if study is None or study.profile is None or not study.profile.blocks or _is_repetition(study):
            continue
        shape = traced_shape.of_study(study.spec.model, study.profile)
        if shape is None:
            continue
        measured = [(run.id, run.trial.config, run.measurement) for run in runs if run.trial and run.measurement]
        group = MeasuredTrials(
            shape=shape,
            workload=study.spec.workload,
            cluster=study.cluster,
            configs=[config for _, config, _ in measured],
            measurements=[measurement for _, _, measurement in measured],
            hardware=hardware,
            study=study_id,
        )
        found |= zip((run_id for run_id, _, _ in measured), learning.compare(group), strict=True)
    return found


def _readable(session: Session, run_ids: Sequence[str]) -> Sequence[RunRow]:
    try:
        return trials.runs_with_trials(session, run_ids)
    except ValidationError:
        found: list[RunRow] = []
        for run_id in run_ids:
            try:
                found += trials.runs_with_trials(session, [run_id])
            except ValidationError as error:
                log.warning("run %s teaches the predictor nothing: its stored values cannot be read: %s", run_id, error)
        return found


def _study(session: Session, study_id: str) -> StudyRow | None:
    try:
        return studies.get(session, study_id)
    except ValidationError as error:
        log.warning("study %s teaches the predictor nothing: its stored values cannot be read: %s", study_id, error)
        return None

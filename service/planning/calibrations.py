"""What the stored runs of a fingerprint teach the predictor; each is read once, and held against its prediction once.

A row that cannot be read (edited by hand, or of another version) is left out with a line in the log: it belongs to
another study, and must not keep this one from its next lease.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.db.queries import studies, trials, workers
from shardtune.db.queries.trials import MeasuredRun
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning.planner_cache import PlannerCache, Subject
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
        return _compared(planner_cache, session, project_id, hardware, new)

    name = f"{fingerprint_key} {project_id} {hardware.content_key() if hardware else ''}"
    learnt = planner_cache.learnt(name, run_ids, compare)
    return Experience(learnt.calibrations, hardware, learnt.known)


def _compared(
    planner_cache: PlannerCache,
    session: Session,
    project_id: str,
    hardware: MeasuredHardware | None,
    run_ids: Sequence[str],
) -> dict[str, ComparedRun]:
    """Runs beside their predictions, by id; those that teach nothing are left out."""
    by_study: dict[str, list[tuple[str, TrialConfig, Measurement]]] = defaultdict(list)
    for run in _readable(session, run_ids):
        if run.measurement is not None:
            by_study[run.study_id].append((run.run_id, run.config, run.measurement))
    found: dict[str, ComparedRun] = {}
    for study_id, runs in by_study.items():
        subject = planner_cache.subject(study_id, partial(_subject, session, study_id))
        # What a measurement is held against rests on the model's profile, which a worker reports as well.
        if subject is None or subject.profiled_for not in (None, project_id):
            continue
        group = MeasuredTrials(
            shape=subject.shape,
            workload=subject.workload,
            cluster=subject.cluster,
            configs=[config for _, config, _ in runs],
            measurements=[measurement for _, _, measurement in runs],
            hardware=hardware,
            study=study_id,
        )
        found |= zip((run_id for run_id, _, _ in runs), learning.compare(group), strict=True)
    return found


def _subject(session: Session, study_id: str) -> Subject | None:
    """What a study measured; None where its runs teach nothing, or not yet."""
    study = _study(session, study_id)
    if study is None or study.model_summary is None or not study.model_summary.blocks or _is_repetition(study):
        return None
    shape = traced_shape.of_study(study.spec.model, study.model_summary)
    if shape is None:
        return None
    return Subject(shape, study.spec.workload, study.cluster, trials.profiled_for(session, study_id))


def _is_repetition(study: StudyRow) -> bool:
    """Canaries repeat one configuration, which would outweigh all others."""
    return study.system_study is not None and study.system_study.kind == SystemStudyKind.CANARY


def _readable(session: Session, run_ids: Sequence[str]) -> Sequence[MeasuredRun]:
    try:
        return trials.measured_runs(session, run_ids)
    except ValidationError:
        found: list[MeasuredRun] = []
        for run_id in run_ids:
            try:
                found += trials.measured_runs(session, [run_id])
            except ValidationError as error:
                log.warning("run %s teaches the predictor nothing: its stored values cannot be read: %s", run_id, error)
        return found


def _study(session: Session, study_id: str) -> StudyRow | None:
    try:
        return studies.get(session, study_id)
    except ValidationError as error:
        log.warning("study %s teaches the predictor nothing: its stored values cannot be read: %s", study_id, error)
        return None

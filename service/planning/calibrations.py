"""What the stored runs of a fingerprint teach the predictor, read once for every change.

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
from shardtune.tuner.prediction.learning import MeasuredTrials

log = logging.getLogger(__name__)

MOST_RUNS = 400
"""The newest ones count; enough to tell the factors apart, and read in a tenth of a second."""


@dataclass(frozen=True)
class Experience:
    """What is known of a fingerprint beyond the catalogue."""

    calibrations: Calibrations = NOTHING_LEARNT
    hardware: MeasuredHardware | None = None


def of(planner_cache: PlannerCache, session: Session, fingerprint_key: str | None, project_id: str) -> Experience:
    """From all studies measured on a fingerprint; nothing before a study's first lease.

    A project learns from its own workers and from those that serve every project: what the workers of another one say
    they have measured is for that one alone.
    """
    if fingerprint_key is None:
        return Experience()
    hardware = workers.measured_hardware(session, fingerprint_key, project_id)
    count, until = trials.measured_state(session, fingerprint_key, project_id, MOST_RUNS)
    if count == MOST_RUNS and until is not None:
        # One run more changes little then, and learning at each end of one would be most of what a busy service does:
        # once a minute.
        until = until.replace(second=0, microsecond=0)
    state = f"{count}:{until}:{hardware.content_key() if hardware else ''}"
    return Experience(
        planner_cache.calibrations(
            f"{fingerprint_key} {project_id}",
            state,
            lambda: learning.learn(_groups(session, fingerprint_key, project_id, hardware)),
        ),
        hardware,
    )


def _is_repetition(study: StudyRow) -> bool:
    """Canaries repeat one configuration, which would outweigh all others."""
    return study.system_study is not None and study.system_study.kind == SystemStudyKind.CANARY


def _groups(
    session: Session, fingerprint_key: str, project_id: str, hardware: MeasuredHardware | None
) -> list[MeasuredTrials]:
    by_study: dict[str, list[RunRow]] = defaultdict(list)
    for run in _readable(session, fingerprint_key, project_id):
        by_study[run.study_id].append(run)
    # What a measurement is held against rests on the model's profile, which a worker reports as well.
    profiled_for = trials.profiled_for(session, by_study)
    groups = []
    for study_id, runs in by_study.items():
        if profiled_for.get(study_id, project_id) != project_id:
            continue
        study = _study(session, study_id)
        if study is None or study.profile is None or not study.profile.blocks or _is_repetition(study):
            continue
        shape = traced_shape.of_study(study.spec.model, study.profile)
        if shape is None:
            continue
        pairs = [(run.trial.config, run.measurement) for run in runs if run.trial and run.measurement]
        groups.append(
            MeasuredTrials(
                shape=shape,
                workload=study.spec.workload,
                cluster=study.cluster,
                configs=[config for config, _ in pairs],
                measurements=[measurement for _, measurement in pairs],
                hardware=hardware,
            )
        )
    return groups


def _readable(session: Session, fingerprint_key: str, project_id: str) -> Sequence[RunRow]:
    try:
        return trials.measured(session, fingerprint_key, project_id, MOST_RUNS)
    except ValidationError:
        found = []
        for run_id in trials.measured_ids(session, fingerprint_key, project_id, MOST_RUNS):
            try:
                found.append(trials.run_with_trial(session, run_id))
            except ValidationError as error:
                log.warning("run %s teaches the predictor nothing: its stored values cannot be read: %s", run_id, error)
        return found


def _study(session: Session, study_id: str) -> StudyRow | None:
    try:
        return studies.get(session, study_id)
    except ValidationError as error:
        log.warning("study %s teaches the predictor nothing: its stored values cannot be read: %s", study_id, error)
        return None

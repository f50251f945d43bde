"""Calibrate the predictor with the stored runs of a fingerprint (hardware and software versions). Each run is read and
compared with its prediction only once.

A row that cannot be read (edited by hand, or of another version) is left out with a log line: it belongs to another
study, and must not keep this one from its next lease.
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
from shardtune.db.queries import offered_hardware, studies, trials
from shardtune.db.queries.trials import MeasuredRun
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning.planner_cache import PlannerCache, Subject
from shardtune.tuner.prediction import learning, traced_shape
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, Calibrations
from shardtune.tuner.prediction.learning import ComparedRun, MeasuredTrials

log = logging.getLogger(__name__)

MOST_RUNS = 400
"""Maximum number of runs used for calibration, newest first. So many are enough to estimate each correction factor of
the predictor separately.
"""


@dataclass(frozen=True)
class Experience:
    """Measurements collected under one fingerprint (hardware and software versions). They make predictions more precise
    than the GPU catalogue's figures alone.
    """

    calibrations: Calibrations = NO_CALIBRATIONS
    hardware: MeasuredHardware | None = None
    runs: tuple[ComparedRun, ...] = ()
    """Runs of all studies on one fingerprint (hardware and software versions), each with its prediction."""


def experience_of(
    planner_cache: PlannerCache, session: Session, fingerprint_key: str | None, project_id: str
) -> Experience:
    """Corrections of the predictor that were fitted to the runs of all studies on a fingerprint (hardware and
    software versions); empty before a study's first lease, when its fingerprint is not known yet.

    A project learns from its own workers and from those that serve every project. Measurements by workers of another
    project count for that project alone.
    """
    if fingerprint_key is None:
        return Experience()
    hardware = offered_hardware.measured_hardware(session, fingerprint_key, project_id)
    run_ids = trials.measured_ids(session, fingerprint_key, project_id, MOST_RUNS)

    def compare(new_run_ids: Sequence[str]) -> dict[str, ComparedRun]:
        return _compared(planner_cache, session, project_id, hardware, new_run_ids)

    # The key names all that the comparison depends on. New hardware rates change every prediction, so they begin a new
    # entry.
    cache_key = f"{fingerprint_key} {project_id} {hardware.content_key() if hardware else ''}"
    calibrated = planner_cache.calibrated_runs(cache_key, run_ids, compare)
    return Experience(calibrated.calibrations, hardware, calibrated.informative_runs)


def _compared(
    planner_cache: PlannerCache,
    session: Session,
    project_id: str,
    hardware: MeasuredHardware | None,
    run_ids: Sequence[str],
) -> dict[str, ComparedRun]:
    """Compare measured runs with their predictions. Returns, by run id, those runs that are useful for calibrating
    the predictor.
    """
    by_study: dict[str, list[tuple[str, TrialConfig, Measurement]]] = defaultdict(list)
    for run in _read_runs(session, run_ids):
        if run.measurement is not None:
            by_study[run.study_id].append((run.run_id, run.config, run.measurement))
    compared: dict[str, ComparedRun] = {}
    for study_id, runs in by_study.items():
        subject = planner_cache.subject(study_id, partial(_read_subject, session, study_id))
        # The prediction rests on the model summary, which a worker reports: a summary from another project's worker
        # could be wrong.
        if subject is None or subject.trusted_project not in (None, project_id):
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
        compared |= zip((run_id for run_id, _, _ in runs), learning.compare(group), strict=True)
    return compared


def _read_subject(session: Session, study_id: str) -> Subject | None:
    """Read the model, workload and cluster of a study; None if its runs are not useful for calibrating the predictor,
    or not yet.
    """
    study = _read_study(session, study_id)
    if study is None or study.model_summary is None or _is_repetition(study):
        return None
    if not study.model_summary.blocks and study.model_summary.step_trace is None:
        return None
    shape = traced_shape.of_study(study.spec.model, study.model_summary, study.spec.workload.adapter)
    if shape is None:
        return None
    return Subject(shape, study.spec.workload, study.cluster, trials.model_summary_project(session, study_id))


def _is_repetition(study: StudyRow) -> bool:
    """Whether a study only repeats one configuration, as canaries (repeated runs of recommended configurations) do."""
    # Many runs of a single configuration would outweigh all others in the calibration.
    return study.system_study is not None and study.system_study.kind == SystemStudyKind.CANARY


def _read_runs(session: Session, run_ids: Sequence[str]) -> Sequence[MeasuredRun]:
    try:
        # Read all at once; only if one row is broken, read them one by one to leave out that row alone.
        return trials.measured_runs(session, run_ids)
    except ValidationError:
        readable_runs: list[MeasuredRun] = []
        for run_id in run_ids:
            try:
                readable_runs += trials.measured_runs(session, [run_id])
            except ValidationError as error:
                log.warning("run %s teaches the predictor nothing: its stored values cannot be read: %s", run_id, error)
        return readable_runs


def _read_study(session: Session, study_id: str) -> StudyRow | None:
    try:
        return studies.get(session, study_id)
    except ValidationError as error:
        log.warning("study %s teaches the predictor nothing: its stored values cannot be read: %s", study_id, error)
        return None

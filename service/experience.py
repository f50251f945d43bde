"""What the stored runs of a fingerprint teach the predictor, read once for every change of their number."""

from collections import defaultdict

from sqlalchemy.orm import Session

from db import studies, trials
from db.rows import RunRow, StudyRow
from service.askers import Askers
from tuner import learning, traced_shape
from tuner.learning import Calibrations, MeasuredTrials

MOST_RUNS = 400
"""The newest ones count; enough to tell the factors apart, and read in a tenth of a second."""


def calibrations(askers: Askers, session: Session, study: StudyRow) -> Calibrations:
    """For a study's trials, from all studies measured on its fingerprint; the priors before its first lease."""
    key = study.fingerprint_key
    if key is None:
        return Calibrations()
    count = trials.measured_count(session, key)
    return askers.calibrations(key, count, lambda: learning.learn(_groups(session, key)))


def _groups(session: Session, fingerprint_key: str) -> list[MeasuredTrials]:
    by_study: dict[str, list[RunRow]] = defaultdict(list)
    for run in trials.measured(session, fingerprint_key, MOST_RUNS):
        by_study[run.study_id].append(run)
    groups = []
    for study_id, runs in by_study.items():
        study = studies.get(session, study_id)
        if study is None or study.profile is None or not study.profile.blocks:
            continue
        pairs = [(run.trial.config, run.measurement) for run in runs if run.trial and run.measurement]
        groups.append(
            MeasuredTrials(
                shape=traced_shape.of_study(study.spec.model, study.profile),
                workload=study.spec.workload,
                cluster=study.cluster,
                configs=[config for config, _ in pairs],
                measurements=[measurement for _, measurement in pairs],
            )
        )
    return groups

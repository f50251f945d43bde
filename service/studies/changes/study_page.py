"""Changes page of a stored study, from its runs and from predictions for its machine."""

from collections.abc import Iterable
from functools import partial

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import trials
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import calibrations, study_snapshot
from shardtune.service.planning.calibrations import Experience
from shardtune.service.process.context import Context
from shardtune.service.studies.changes import page
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import predict, traced_shape
from shardtune.tuner.prediction.shapes import calibration_choice


def changes_page_of(context: Context, session: Session, row: StudyRow, study: Study) -> str | None:
    """Return the content of `changes.md`, which explains how a study's recommended configuration differs from its
    baseline; None if there is no result, or if the baseline is recommended.
    """
    if study.result is None:
        return None
    observed = (study_snapshot.observation(trial, row.comparison_round) for trial in trials.of_study(session, row.id))
    speeds = comparable_speeds(observed)
    experience = calibrations.experience_of(context.planner_cache, session, row.fingerprint_key, row.project_id)
    return page.changes_page(study, study.result, speeds, partial(_predicted_speed, study, experience))


def comparable_speeds(observed: Iterable[Observation]) -> dict[TrialConfig, float]:
    """Return the speeds of the search runs that measure the effect of a setting beside each other: complete runs that
    were not disturbed.
    """
    # A quiet run beside a disturbed one would show the load of the machine as the effect of a setting.
    return {
        run.config: run.measurement.tokens_per_s_per_gpu
        for run in observed
        if run.measurement is not None and run.state is TrialState.COMPLETE and not run.is_disturbed
    }


def _predicted_speed(study: Study, experience: Experience, config: TrialConfig) -> float | None:
    """Predict the speed of a configuration of the study; None if its speed cannot be predicted."""
    summary = study.model_summary
    shape = None if summary is None else traced_shape.of_study(study.spec.model, summary, study.spec.workload.adapter)
    if shape is None:
        return None
    try:
        prediction = predict.predict(
            shape,
            study.spec.workload,
            study.cluster,
            config,
            speed_calibration=calibration_choice.speed_calibration(experience.calibrations, shape),
            limits=False,
            measured=experience.hardware,
        )
    # A GPU outside the catalogue, or a mesh that only the whole configuration takes.
    except ValueError:
        return None
    return None if prediction.speed is None else prediction.speed.tokens_per_s_per_gpu

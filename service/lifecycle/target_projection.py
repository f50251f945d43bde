"""Project a finished study to its target, as its result is about to be stored."""

import logging
from dataclasses import replace

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.studies.targets import NOT_PROJECTED, StudyProjection
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import offered_hardware, studies
from shardtune.service.lifecycle import smaller_rungs, target_rehearsals
from shardtune.service.planning import agreement
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import Complete, NewRehearsalRun, Step
from shardtune.service.process.context import Context
from shardtune.tuner.prediction import traced_shape
from shardtune.tuner.projection.rung_test import Rung
from shardtune.tuner.projection.target_sizes import TargetSizes
from shardtune.tuner.verdict import contenders
from shardtune.tuner.verdict.winner import resume_check

log = logging.getLogger(__name__)

_TOO_LARGE = (FailureKind.OOM, FailureKind.OVER_LIMIT)


def with_projection(context: Context, snapshot: StudySnapshot, step: Step) -> Step:
    """Add a projection (prediction for the larger cluster that the study names as target) to the step that completes
    a study, or return the rehearsal (untimed first steps) that the projection still needs. Any other step is returned
    unchanged.
    """
    # Canaries and challenges repeat a few configurations: they say nothing new about the order on the target.
    repeats = snapshot.system_study is not None and snapshot.system_study.kind != SystemStudyKind.SEARCH
    if not isinstance(step, Complete) or snapshot.spec.target is None or repeats:
        return step
    result = _projected(context, snapshot, step.result)
    return result if isinstance(result, NewRehearsalRun) else replace(step, result=result)


def _projected(context: Context, snapshot: StudySnapshot, result: StudyResult) -> StudyResult | NewRehearsalRun:
    # The measured answer is complete without its projection, and must not be lost for it.
    try:
        projection = _answer(snapshot, _hardware(context, snapshot), _smaller_rungs(context, snapshot))
        if isinstance(projection, NewRehearsalRun):
            return projection
        projected, recommended = projection.best.trial_number, snapshot.answer(result).best.trial_number
        unchecked = resume_check.notes_of_projected(snapshot.spec, snapshot.resume_runs, projected, recommended)
        notes = (*projection.notes, *unchecked)
        return result.model_copy(update={"projection": projection.model_copy(update={"notes": notes})})
    except ValueError as error:
        reason = str(error)
    except Exception as error:  # a border: the verdict would be lost for a fault of its projection.
        log.exception("projection failed", extra={"study": snapshot.study_id})
        reason = f"{type(error).__name__}: {error}; the service's log has the traceback"
    return result.model_copy(update={"notes": (*result.notes, f"{NOT_PROJECTED}{reason}")})


def _hardware(context: Context, snapshot: StudySnapshot) -> MeasuredHardware | None:
    """Hardware rates (such as matmul and link speeds) measured by a worker with the study's fingerprint (hardware and
    software versions).
    """
    with context.db.read() as session:
        row = studies.get(session, snapshot.study_id)
        if row is None or row.fingerprint_key is None:
            return None
        return offered_hardware.measured_hardware(session, row.fingerprint_key, row.project_id)


def _smaller_rungs(context: Context, snapshot: StudySnapshot) -> list[Rung]:
    """Smaller clusters on which earlier studies of the project gave each rank the same work as this study does."""
    with context.db.read() as session:
        return smaller_rungs.find(session, snapshot, _feasible)


def _feasible(snapshot: StudySnapshot) -> list[Contender]:
    """Measured trials of a study that fit into memory and reproduced the losses of the study's reference."""
    infeasible = agreement.final_parity_groups(
        snapshot.history, snapshot.rejected, snapshot.spec
    ).parity_groups.infeasible
    return [
        contenders.contender(trial)
        for trial in snapshot.history
        if trial.state is TrialState.COMPLETE and trial.measurement is not None and trial.number not in infeasible
    ]


def _answer(
    snapshot: StudySnapshot, hardware: MeasuredHardware | None, smaller: list[Rung]
) -> StudyProjection | NewRehearsalRun:
    """Projection of a study's measurements to its target (a larger cluster), or the rehearsal (untimed first steps)
    that the projection needs next.

    Raises:
        ValueError: the model's speed cannot be predicted, or no measured configuration can run on the target.
    """
    spec = snapshot.spec
    shape = (
        None
        if snapshot.model_summary is None
        else traced_shape.of_study(spec.model, snapshot.model_summary, spec.workload.adapter)
    )
    if shape is None:
        raise ValueError("no step of the model was counted, so that nothing is predicted; `shardtune predict` says why")
    not_fitting = [rejection.config for rejection in snapshot.rejected] + [
        trial.config for trial in snapshot.history if trial.failure is not None and trial.failure.kind in _TOO_LARGE
    ]
    sizes = TargetSizes.of_study(spec, shape, snapshot.cluster, hardware)
    return target_rehearsals.answer(snapshot, sizes, _feasible(snapshot), not_fitting, smaller)

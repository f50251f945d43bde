"""Confirmation of a projection: the result of a study on the target beside what had been projected."""

from collections.abc import Collection
from datetime import datetime
from statistics import median

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.studies.target_confirmations import (
    ConfirmationOutcome,
    MeasuredOnTarget,
    TargetConfirmation,
)
from shardtune.api_schemas.studies.targets import ProjectedConfig, StudyProjection


def confirmed(
    projection: StudyProjection,
    study_id: str,
    result: StudyResult,
    cannot_run: Collection[TrialConfig],
    now: datetime,
) -> StudyProjection:
    """Return the projection with what a study on the target measured about the projection's first and second choice.

    `cannot_run`: configurations that were tried on the target and cannot run there: they do not fit, or their backend
    rejects them. The projected configurations and their bands stay as they were, so that the error of the projection
    remains visible.
    """
    first, second = projection.best, projection.runners_up[0]
    outcome = _outcome(result, first.config, second.config, cannot_run)
    # An undecided comparison may have been slightly better for the second choice; nobody knows, so the answer stays.
    answer = second if outcome == "changed" else first
    speedup, ratios = result.speedup, () if result.final_comparison is None else result.final_comparison.ratios
    confirmation = TargetConfirmation(
        study_id=study_id,
        outcome=outcome,
        config=answer.config,
        description=answer.description,
        measured=_measured((first, second), result),
        # A choice that is far behind ends the comparison after few pairs, which are too few for an interval.
        speedup=speedup.value if speedup is not None else median(ratios) if ratios else None,
        ci95=None if speedup is None else speedup.ci95,
        pairs=0 if result.final_comparison is None else result.final_comparison.pairs,
        confirmed_at=now,
    )
    verdict = "projected" if outcome == "undecided" else outcome
    return projection.model_copy(update={"verdict": verdict, "confirmation": confirmation})


def replaces(reported: StudyProjection, projection: StudyProjection) -> bool:
    """Whether a new confirmation of a projection replaces the stored one: an undecided result of another study never
    replaces a decided one."""
    earlier, later = projection.confirmation, reported.confirmation
    assert later is not None
    # The same study with more pairs knows all that it knew before.
    is_repeat = earlier is not None and earlier.study_id != later.study_id
    return not is_repeat or projection.verdict == "projected" or later.outcome != "undecided"


def with_confirmation_of(projection: StudyProjection, other: StudyProjection) -> StudyProjection:
    """Return `projection` with the verdict and the confirmation of another projection (`other`), if both have the same
    first and second choice; otherwise unchanged."""
    if not _choices(projection) or _choices(projection) != _choices(other):
        return projection
    return projection.model_copy(update={"verdict": other.verdict, "confirmation": other.confirmation})


def _choices(projection: StudyProjection) -> tuple[object, ...]:
    if not projection.runners_up:
        return ()
    return projection.global_batch, projection.best.config, projection.runners_up[0].config


def _outcome(
    result: StudyResult, first: TrialConfig, second: TrialConfig, cannot_run: Collection[TrialConfig]
) -> ConfirmationOutcome:
    if result.final_comparison is None:
        # Only one of the two was measured. The other one may have crashed, or never run: that decides nothing.
        is_first = result.best.config == first
        if (second if is_first else first) not in cannot_run:
            return "undecided"
        return "confirmed" if is_first else "changed"
    if result.verdict is Verdict.CONFIRMED:
        return "confirmed"
    return "changed" if result.verdict is Verdict.NOT_FASTER else "undecided"


def _measured(choices: tuple[ProjectedConfig, ...], result: StudyResult) -> tuple[MeasuredOnTarget, ...]:
    ran = [row for row in (result.best, result.baseline, result.candidate) if row is not None]
    by_config = {row.config: row for row in ran}
    return tuple(_beside(choice, by_config[choice.config]) for choice in choices if choice.config in by_config)


def _beside(choice: ProjectedConfig, ran: Contender) -> MeasuredOnTarget:
    band, speed = choice.tokens_per_s_per_gpu, ran.tokens_per_s_per_gpu
    return MeasuredOnTarget(
        config=choice.config,
        description=choice.description,
        tokens_per_s_per_gpu=speed,
        runs=ran.runs,
        projected=band,
        error=band.expected / speed - 1,
        is_inside_band=band.low <= speed <= band.high,
    )

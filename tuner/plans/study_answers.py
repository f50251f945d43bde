"""Answers of a study for a plan: the configuration that it measured on its own cluster, and those that it projected."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.studies.target_confirmations import MeasuredOnTarget, TargetConfirmation
from shardtune.api_schemas.studies.targets import BestAtSize, StudyProjection
from shardtune.api_schemas.trials.plan_rows import StudyVerdict
from shardtune.api_schemas.trials.plans import PlanMeasurement
from shardtune.tuner.plans.measured_band import measured_band, scaled
from shardtune.tuner.prediction import catalogue


@dataclass(frozen=True)
class SizeAnswer:
    """Configuration that a study recommends for one number of GPUs, with its speed."""

    study_id: str
    cluster: Cluster
    global_batch: int
    """Samples per step that were measured or projected."""
    config: TrialConfig
    tokens_per_s_per_gpu: Band
    evidence: Literal["measured", "projected"]
    anchors: tuple[int, ...]
    """Numbers of GPUs on which the speed was measured."""
    verdict: StudyVerdict | None = None
    """Verdict about a measured configuration; None if it was projected."""
    memory_gib: float | None = None
    """Peak memory of tensors in GiB, with the same evidence as the speed; None if the study has no figure of it."""
    memory_evidence: Literal["measured", "projected"] = "projected"
    may_not_fit: bool = False

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.cluster.world_size

    @property
    def slowness_if_scattered(self) -> float:
        """Factor by which the low end of the speed's band is lower than its high end is higher: that of nodes without
        neighbours below their leaf switch (`project`)."""
        speed = self.tokens_per_s_per_gpu
        return max(speed.expected**2 / (speed.low * speed.high), 1.0)


def answers_of(study: Study, result: StudyResult) -> tuple[SizeAnswer, ...]:
    """Return the answers of a study: first that of its own cluster, then those of larger ones up to its target.

    Nothing is projected from a machine that was too busy: its disturbed runs would make every speed too low.
    """
    projection, own = result.projection, _own(study, result)
    if projection is None:
        return (own,)
    there = _on_target(study, result, projection)
    if result.verdict is Verdict.TOO_BUSY:
        return (own, there) if there.evidence == "measured" else (own,)
    return (own, *_between(study, result, projection), there)


def recommended_side(result: StudyResult) -> Contender:
    """Return the configuration whose measurement stands for a study's own cluster: the recommended one, or the baseline
    if the machine was too busy to compare them."""
    return result.baseline if result.verdict is Verdict.TOO_BUSY else result.best


def sustained_factor(result: StudyResult) -> float:
    """Return the ratio of the sustained speed to the speed in the comparison, if the long run was slower than chance
    explains; otherwise 1. A training lasts longer than any run of a comparison."""
    sustained = result.sustained
    if sustained is None or sustained.tokens_per_s_per_gpu is None or not sustained.is_slower:
        return 1.0
    return sustained.tokens_per_s_per_gpu / sustained.compared_tokens_per_s_per_gpu


def measurements_of(study: Study, result: StudyResult) -> tuple[PlanMeasurement, ...]:
    """Return the study's compared configurations as measurements from which other numbers of GPUs are projected. There
    are none if the machine was too busy."""
    if result.verdict is Verdict.TOO_BUSY:
        return ()
    compared = (result.best, result.baseline, result.candidate)
    sides = {side.config.content_key(): side for side in compared if side is not None}
    gpus, batch, factor = study.cluster.world_size, study.spec.workload.global_batch, sustained_factor(result)
    return tuple(
        PlanMeasurement(
            gpu=catalogue.find(study.cluster.gpu).name,
            gpus=gpus,
            config=side.config,
            gradient_accumulation=side.config.accumulation(batch, gpus),
            tokens_per_s_per_gpu=side.tokens_per_s_per_gpu * factor,
            peak_gib=side.peak_allocated_gib or None,
        )
        for side in sides.values()
    )


def _own(study: Study, result: StudyResult) -> SizeAnswer:
    side = recommended_side(result)
    speed = measured_band(side, is_disturbed=result.verdict is Verdict.TOO_BUSY)
    return SizeAnswer(
        study_id=study.study_id,
        cluster=study.cluster,
        global_batch=study.spec.workload.global_batch,
        config=side.config,
        tokens_per_s_per_gpu=scaled(speed, sustained_factor(result)),
        evidence="measured",
        anchors=(study.cluster.world_size,),
        verdict=result.verdict.value,
        memory_gib=side.peak_allocated_gib,
        memory_evidence="measured",
    )


def _between(study: Study, result: StudyResult, projection: StudyProjection) -> Iterator[SizeAnswer]:
    """Projected answers for the sizes between the study's own cluster and its target."""
    for size in projection.sizes:
        if size.evidence == "projected" and size.nodes != projection.cluster.nodes:
            yield _projected(study, result, projection, size)


def _projected(study: Study, result: StudyResult, projection: StudyProjection, size: BestAtSize) -> SizeAnswer:
    return SizeAnswer(
        study_id=study.study_id,
        cluster=projection.cluster.model_copy(update={"nodes": size.nodes}),
        global_batch=size.global_batch,
        config=size.config,
        tokens_per_s_per_gpu=scaled(size.tokens_per_s_per_gpu, _factor_there(result, projection)),
        evidence="projected",
        anchors=(projection.measured_gpus,),
    )


def _on_target(study: Study, result: StudyResult, projection: StudyProjection) -> SizeAnswer:
    """Answer for the target: measured if a study has run there, otherwise projected."""
    answer, confirmation = projection.answer, projection.confirmation
    there = None if confirmation is None else _run_of(confirmation, answer.config)
    if confirmation is None or there is None:
        speed = scaled(answer.tokens_per_s_per_gpu, _factor_there(result, projection))
    else:
        speed = measured_band(_as_contender(there))
    return SizeAnswer(
        study_id=study.study_id if confirmation is None or there is None else confirmation.study_id,
        cluster=projection.cluster,
        global_batch=projection.global_batch,
        config=answer.config,
        tokens_per_s_per_gpu=speed,
        evidence="projected" if there is None else "measured",
        anchors=(projection.measured_gpus if there is None else projection.cluster.world_size,),
        verdict=None if confirmation is None or there is None else _verdict_on_target(confirmation),
        memory_gib=answer.memory_gib.expected,
        may_not_fit=answer.may_not_fit and there is None,
    )


def _factor_there(result: StudyResult, projection: StudyProjection) -> float:
    """Factor on projected speeds: the clocks of the study's GPUs say nothing about those of another kind."""
    return sustained_factor(result) if projection.measured_gpu is None else 1.0


def _run_of(confirmation: TargetConfirmation, config: TrialConfig) -> MeasuredOnTarget | None:
    return next((row for row in confirmation.measured if row.config == config), None)


def _as_contender(there: MeasuredOnTarget) -> Contender:
    """Represent a configuration that ran on the target as a measured one, whose runs have no known spread."""
    return Contender(
        trial_number=0,
        config=there.config,
        description=there.description,
        tokens_per_s_per_gpu=there.tokens_per_s_per_gpu,
        peak_allocated_gib=None,
        peak_reserved_gib=None,
        runs=there.runs,
    )


def _verdict_on_target(confirmation: TargetConfirmation) -> StudyVerdict:
    """Verdict of the runs on the target about the configuration that is the answer there."""
    if confirmation.outcome == "changed":
        # The second choice is the answer also where the first cannot run, or is merely not faster.
        is_faster = confirmation.ci95 is not None and confirmation.ci95[1] < 1.0
        return "confirmed" if is_faster else "undecided"
    return confirmation.outcome

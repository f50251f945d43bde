"""Stored study whose measurements and projections a plan uses, checked against the plan's request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.trials.plans import PlanMeasurement, PlanRequest
from shardtune.tuner.plans import study_training
from shardtune.tuner.plans.layouts import is_near
from shardtune.tuner.plans.resume_times import resume_times, why_no_times, with_times
from shardtune.tuner.plans.study_answers import (
    SizeAnswer,
    answers_of,
    measurements_of,
    sustained_factor,
)


@dataclass(frozen=True)
class StudyOfPlan:
    """Study of a plan: its answers and measurements that hold for the plan's kinds of GPUs."""

    study_id: str
    answers: Mapping[tuple[str, int], SizeAnswer] = field(default_factory=dict)
    """Answers by kind of GPU, as the request names it, and number of GPUs."""
    measured_gpu: str | None = None
    """Kind of GPU of the measurements, as the request names it."""
    measurements: tuple[PlanMeasurement, ...] = ()
    """Measurements from which other numbers of these GPUs, or other batches, are projected."""
    global_batch: int | None = None
    """Samples per step of the training that was tuned: on the study's target if it has one. None if nothing of the study's
    speeds is used."""
    notes: tuple[str, ...] = ()
    """Sentences about the figures that are used, and about those that are not."""

    def measurements_on(self, gpu: str) -> tuple[PlanMeasurement, ...]:
        """Return the study's measurements on one kind of GPU."""
        return self.measurements if gpu == self.measured_gpu else ()


def read_study(request: PlanRequest, study: Study) -> tuple[PlanRequest, StudyOfPlan]:
    """Check a study against a plan's request. Return the request with the values that the study gives (sequence length,
    precision, times of checkpoints), and what the plan uses of the study.

    Raises:
        ValueError: the study has no answer, trained another model or otherwise than the plan, or has no figure for it.
    """
    study_training.check_training(study, request.model)
    result = study.result
    if result is None:
        reason = f": {study.reason}" if study.reason else ""
        raise ValueError(
            f"study ({study.study_id}) has no answer, it is {study.state.value}{reason}; name a complete study, or leave "
            "study out"
        )
    unusable, times = _why_no_speeds(request, study, result), resume_times(study)
    if unusable:
        used = StudyOfPlan(study.study_id, notes=(f"study {study.study_id}: no row is of its speeds: {unusable}",))
    else:
        request = study_training.with_workload(request, study)
        used = _used(request, study, result)
        unusable = "" if used.answers or used.measurements else "; ".join(used.notes)
    if unusable and times is None:
        raise ValueError(
            f"study ({study.study_id}) {why_no_times(study)}, and no row is of its speeds: {unusable}; name a study of the "
            "plan's training and GPUs, or leave study out"
        )
    if times is not None:
        used = replace(used, notes=(*used.notes, times.note))
    return request.model_copy(update={"goodput": with_times(request.goodput, times)}), used


def _why_no_speeds(request: PlanRequest, study: Study, result: StudyResult) -> str:
    """Say why no speed of a study is one of a plan's training on a plan's GPUs; empty if some may be."""
    reason = study_training.why_not_comparable(study)
    clusters = [study.cluster, *([] if result.projection is None else [result.projection.cluster])]
    if reason or any(study_training.kind_in(request, cluster) is not None for cluster in clusters):
        return reason
    return f"it measured {_measured_on(study)}, which gpus ({', '.join(request.gpus)}) leave out"


def _measured_on(study: Study) -> str:
    ranks = study.cluster.world_size
    return f"{ranks} CPU ranks" if study.cluster.device == "cpu" else f"{ranks} × {study.cluster.gpu}"


def _used(request: PlanRequest, study: Study, result: StudyResult) -> StudyOfPlan:
    """Answers and measurements of a study that hold for the plan's nodes, network and batch, with notes."""
    name = f"study {study.study_id}"
    # By kind: the target of a study may have other GPUs than its own cluster.
    planned = [
        (gpu, answer)
        for answer in answers_of(study, result)
        if (gpu := study_training.kind_in(request, answer.cluster)) is not None
    ]
    answers = [answer for _, answer in planned]
    here = [(gpu, answer) for gpu, answer in planned if not study_training.difference(request, answer.cluster)]
    kept = {(gpu, answer.gpus): answer for gpu, answer in here if _has_batch(request, answer)}
    measured_gpu = study_training.kind_in(request, study.cluster)
    has_measured = measured_gpu is not None and not study_training.difference(request, study.cluster)
    measurements = measurements_of(study, result) if has_measured else ()
    notes = [
        _row_note(gpu, answer, _measured_on(study)) for (gpu, count), answer in kept.items() if count in request.counts
    ]
    notes += _other_batches(name, request, [answer for _, answer in here]) + _other_clusters(name, request, answers)
    if has_measured and study.cluster.world_size not in request.counts:
        notes.append(f"{name}: it measured {_measured_on(study)}, which counts leaves out")
    return StudyOfPlan(
        study.study_id,
        kept,
        measured_gpu,
        measurements,
        study.spec.workload.global_batch if result.projection is None else result.projection.global_batch,
        (*notes, *_speed_notes(name, result, measurements)),
    )


def _has_batch(request: PlanRequest, answer: SizeAnswer) -> bool:
    return request.global_batch is None or is_near(answer.global_batch, request.global_batch)


def _other_batches(name: str, request: PlanRequest, answers: Sequence[SizeAnswer]) -> list[str]:
    """Notes on answers for numbers of GPUs of the plan with another batch than its own."""
    return [
        f"{name}: its speed on {answer.gpus} GPUs is of {answer.global_batch} samples a step, and global_batch is "
        f"{request.global_batch}"
        for answer in answers
        if answer.gpus in request.counts and not _has_batch(request, answer)
    ]


def _other_clusters(name: str, request: PlanRequest, answers: Sequence[SizeAnswer]) -> list[str]:
    """Notes on answers for clusters that are not those of the plan, one for each difference."""
    sizes: dict[str, list[str]] = defaultdict(list)
    for answer in answers:
        other = study_training.difference(request, answer.cluster)
        if other and (answer.evidence == "measured" or answer.gpus in request.counts):
            sizes[other].append(str(answer.gpus))
    return [f"{name}: no row is of its {listed(gpus)} GPUs: {other}" for other, gpus in sizes.items()]


def _row_note(gpu: str, answer: SizeAnswer, measured_on: str) -> str:
    """Note on a row that a study answers: its batch, and whether its configuration was compared."""
    name, row = f"study {answer.study_id}", f"{answer.gpus} × {gpu} with {answer.global_batch} samples a step"
    if answer.evidence == "projected":
        return f"{name}: it projected {row} from {measured_on}"
    words = "confirmed" if answer.verdict == "confirmed" else f"not confirmed ({str(answer.verdict).replace('_', ' ')})"
    return f"{name}: it measured {row}, {words}"


def _speed_notes(name: str, result: StudyResult, measurements: Sequence[PlanMeasurement]) -> list[str]:
    notes = []
    factor = sustained_factor(result)
    other = None if result.projection is None else result.projection.measured_gpu
    # The clocks of the study's GPUs say nothing about those of another kind.
    where = "" if other is None else f" on {other}"
    if factor < 1.0 and (other is None or measurements):
        notes.append(
            f"{name}: its speeds{where} are {1 - factor:.1%} below those of its comparison, as in the long run of its answer"
        )
    if result.verdict is Verdict.TOO_BUSY:
        notes.append(
            f"{name}: other programs disturbed its runs, so that its row is of the baseline, which may be faster than "
            "measured, and nothing is projected from it"
        )
    elif measurements:
        notes.append(f"{name}: other numbers of its GPUs, and other batches, are projected from its measurements")
    return notes

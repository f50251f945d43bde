"""Stored study whose measurements and projections a plan uses, checked against the plan's request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.machines.hardware import Cluster
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
    """Study of a plan: its answers and measurements that hold for one of the plan's kinds of GPUs."""

    study_id: str
    cluster: Cluster
    gpu: str | None = None
    """Kind of GPU that the study measured, as the request names it; None if nothing of the study's speeds is used."""
    answers: tuple[SizeAnswer, ...] = ()
    measurements: tuple[PlanMeasurement, ...] = ()
    """Measurements from which other numbers of GPUs, or other batches, are projected."""
    global_batch: int | None = None
    """Samples per step of the training that was tuned: on the study's target if it has one. None if nothing of the study's
    speeds is used."""
    notes: tuple[str, ...] = ()
    """Sentences about the figures that are used, and about those that are not."""

    def answer_at(self, gpu: str, count: int) -> SizeAnswer | None:
        """Return the study's answer for one kind and number of GPUs; None if it has none."""
        return next((answer for answer in self.answers if gpu == self.gpu and answer.gpus == count), None)

    def measurements_on(self, gpu: str) -> tuple[PlanMeasurement, ...]:
        """Return the study's measurements on one kind of GPU."""
        return self.measurements if gpu == self.gpu else ()


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
    gpu, times = study_training.kind_in(request, study.cluster), resume_times(study)
    unusable = study_training.why_not_comparable(study)
    if gpu is None:
        unusable = f"it measured {_measured_on(study)}, which gpus ({', '.join(request.gpus)}) leave out"
    if unusable and times is None:
        raise ValueError(
            f"study ({study.study_id}) {why_no_times(study)}, and no row is of its speeds: {unusable}; name a study of the "
            "plan's training and GPUs, or leave study out"
        )
    if unusable or gpu is None:
        note = f"study {study.study_id}: no row is of its speeds: {unusable}"
        used = StudyOfPlan(study.study_id, study.cluster, notes=(note,))
    else:
        request = study_training.with_workload(request, study)
        used = _used(request, study, result, gpu)
    if times is not None:
        used = replace(used, notes=(*used.notes, times.note))
    return request.model_copy(update={"goodput": with_times(request.goodput, times)}), used


def _measured_on(study: Study) -> str:
    ranks = study.cluster.world_size
    return f"{ranks} CPU ranks" if study.cluster.device == "cpu" else f"{ranks} × {study.cluster.gpu}"


def _used(request: PlanRequest, study: Study, result: StudyResult, gpu: str) -> StudyOfPlan:
    """Answers and measurements of a study that hold for the plan's nodes, network and batch, with notes."""
    name, answers = f"study {study.study_id}", answers_of(study, result)
    here = [answer for answer in answers if not study_training.difference(request, answer.cluster)]
    kept = [answer for answer in here if _has_batch(request, answer)]
    notes = [_row_note(name, gpu, answer) for answer in kept if answer.gpus in request.counts]
    notes += _other_batches(name, request, here) + _other_clusters(name, request, answers)
    own, is_own_size = answers[0], answers[0] in here
    measurements = measurements_of(study, result) if is_own_size else ()
    if own.gpus not in request.counts and is_own_size:
        notes.append(f"{name}: it measured {own.gpus} × {gpu}, which counts leaves out")
    return StudyOfPlan(
        study.study_id,
        study.cluster,
        gpu,
        tuple(kept),
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


def _row_note(name: str, gpu: str, answer: SizeAnswer) -> str:
    """Note on a row that a study answers: its batch, and whether its configuration was compared."""
    row = f"{answer.gpus} × {gpu} with {answer.global_batch} samples a step"
    if answer.evidence == "projected":
        return f"{name}: it projected {row} from {listed([str(count) for count in answer.anchors])} GPUs"
    words = "confirmed" if answer.verdict == "confirmed" else f"not confirmed ({str(answer.verdict).replace('_', ' ')})"
    return f"study {answer.study_id}: it measured {row}, {words}"


def _speed_notes(name: str, result: StudyResult, measurements: Sequence[PlanMeasurement]) -> list[str]:
    notes = []
    factor = sustained_factor(result)
    if factor < 1.0:
        notes.append(
            f"{name}: its speeds are {1 - factor:.1%} below those of its comparison, as in the long run of its answer"
        )
    if result.verdict is Verdict.TOO_BUSY:
        notes.append(
            f"{name}: other programs disturbed its runs, so that its row is of the baseline, which may be faster than "
            "measured, and nothing is projected from it"
        )
    elif measurements:
        notes.append(f"{name}: other numbers of its GPUs, and other batches, are projected from its measurements")
    return notes

"""Rows of a plan on one kind of GPU: for each number of GPUs what a study measured or projected, or what is predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.trials.plan_rows import ImpossibleRow, PlanRow
from shardtune.api_schemas.trials.plans import PlanMeasurement, PlanRequest
from shardtune.tuner.plans.grown_layouts import with_grown
from shardtune.tuner.plans.layouts import PlanLayouts, join
from shardtune.tuner.plans.rows import RowConfig, row_of
from shardtune.tuner.plans.speeds import ConfigSpeed, KindSpeeds, speeds_of_kind
from shardtune.tuner.plans.study_answers import SizeAnswer
from shardtune.tuner.plans.study_of_plan import StudyOfPlan
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.prediction_request import ResolvedRequest


@dataclass(frozen=True)
class PlanKind:
    """One kind of GPU of a plan, with its name in the request and its name in the catalogue."""

    name: str
    resolved: ResolvedRequest


@dataclass(frozen=True)
class PlanBasis:
    """Values that the rows of all kinds of GPUs of a plan share."""

    request: PlanRequest
    layouts: PlanLayouts | None
    """Configurations worth a prediction; None if there is none on any number of GPUs."""
    global_batch: int
    begins: datetime
    """Moment at which the run starts."""
    study: StudyOfPlan | None = None


def rows_of_kind(basis: PlanBasis, kind: PlanKind) -> Sequence[PlanRow | ImpossibleRow]:
    """Return a row for each number of GPUs of one kind.

    A study's answer is the row of its number of GPUs. Only a faster measurement that the request itself states
    replaces it.
    """
    request, own = basis.request, _stated_measurements(basis.request, kind)
    answers = _study_rows(basis, kind)
    speeds = _speeds(basis, kind, own)
    rows = list[PlanRow | ImpossibleRow]()
    for count in request.counts:
        predicted = _predicted(basis, kind, speeds, count)
        answer = answers.get(count)
        if isinstance(predicted, ImpossibleRow) and answer is None:
            rows.append(predicted)
            continue
        if answer is None or _is_faster_measurement(predicted, answer, own, count):
            assert isinstance(predicted, RowConfig)
            answer = predicted
        rows.append(row_of(request, kind.name, count, answer, basis.begins))
    return rows


def _is_faster_measurement(
    predicted: RowConfig | ImpossibleRow, answer: RowConfig, own: Sequence[PlanMeasurement], count: int
) -> bool:
    if isinstance(predicted, ImpossibleRow) or predicted.evidence != "measured":
        return False
    is_stated = any(item.gpus == count and item.config == predicted.config for item in own)
    is_faster = predicted.tokens_per_s_per_gpu.expected > answer.tokens_per_s_per_gpu.expected
    return is_stated and (is_faster or answer.evidence != "measured")


def _stated_measurements(request: PlanRequest, kind: PlanKind) -> list[PlanMeasurement]:
    """Measurements of the request on one kind of GPU."""
    own = catalogue.find(kind.name)
    return [
        item
        for number, item in enumerate(request.measurements)
        if catalogue.find(item.gpu, f"measurements.{number}.gpu") == own
    ]


def _speeds(basis: PlanBasis, kind: PlanKind, own: Sequence[PlanMeasurement]) -> KindSpeeds | None:
    """Predictions on one kind of GPU; None without a configuration to predict."""
    if basis.layouts is None:
        return None
    layouts, measured = basis.layouts, () if basis.study is None else basis.study.measurements_on(kind.name)
    if measured:
        resolved, batch = kind.resolved, basis.global_batch
        layouts = with_grown(layouts, measured, basis.request.counts, resolved.cluster, resolved.sequence, batch)
        # What the user measured was not compared by the study, and may be faster than its configurations.
        layouts = replace(layouts, of_study=None) if own else layouts
    return speeds_of_kind(kind.resolved, layouts, basis.global_batch, (*own, *measured))


def _predicted(basis: PlanBasis, kind: PlanKind, speeds: KindSpeeds | None, count: int) -> RowConfig | ImpossibleRow:
    """Fastest configuration by prediction, or by projection from measurements; or the reason why there is none."""
    if speeds is None:
        return _impossible(kind, count, basis.global_batch)
    if not speeds.knows_speed:
        reason = f"the catalogue has no rates of {kind.name}; measure them with `shardtune measure-hardware`"
        return ImpossibleRow(gpu=kind.name, gpus=count, reason=reason)
    fastest = speeds.fastest(count)
    if fastest is None:
        has_layout = bool((speeds.layouts.gpus == count).any())
        return _too_small(kind, count) if has_layout else _impossible(kind, count, basis.global_batch)
    return _row_config(speeds, fastest, None if basis.study is None else _study_behind(basis.study, kind, fastest))


def _study_behind(study: StudyOfPlan, kind: PlanKind, fastest: ConfigSpeed) -> str | None:
    """Id of the study on whose measurements a projected speed rests."""
    gpus = {item.gpus for item in study.measurements_on(kind.name)}
    return study.study_id if fastest.evidence == "projected" and not gpus.isdisjoint(fastest.anchors) else None


def _row_config(speeds: KindSpeeds, fastest: ConfigSpeed, study_id: str | None) -> RowConfig:
    layouts, index = speeds.layouts, fastest.index
    return RowConfig(
        config=layouts.configs[index],
        global_batch=round(float(layouts.global_batches[index])),
        tokens_per_s_per_gpu=fastest.tokens_per_s_per_gpu,
        evidence=fastest.evidence,
        memory_gib=float(speeds.evaluation.total_gib[index]),
        may_not_fit=not bool(speeds.surely_fits[index]),
        anchors=fastest.anchors,
        slowness_if_scattered=fastest.slowness_if_scattered,
        study_id=study_id,
    )


def _study_rows(basis: PlanBasis, kind: PlanKind) -> Mapping[int, RowConfig]:
    """Configurations that a study measured or projected for the plan's numbers of GPUs of one kind."""
    study, counts = basis.study, basis.request.counts
    found = [] if study is None else [study.answers.get((kind.name, count)) for count in counts]
    answers = [answer for answer in found if answer is not None]
    predicted = _predicted_memory(kind.resolved, answers)
    return {answer.gpus: _of_answer(answer, *memory) for answer, memory in zip(answers, predicted, strict=True)}


def _of_answer(answer: SizeAnswer, predicted_gib: float, may_not_fit: bool) -> RowConfig:
    has_figure = answer.memory_gib is not None
    return RowConfig(
        config=answer.config,
        global_batch=answer.global_batch,
        tokens_per_s_per_gpu=answer.tokens_per_s_per_gpu,
        evidence=answer.evidence,
        memory_gib=predicted_gib if answer.memory_gib is None else answer.memory_gib,
        memory_evidence=answer.memory_evidence if has_figure else "predicted",
        # A configuration that was measured fits, whatever is predicted for it.
        may_not_fit=answer.evidence == "projected" and (answer.may_not_fit if has_figure else may_not_fit),
        anchors=answer.anchors,
        slowness_if_scattered=answer.slowness_if_scattered,
        study_id=answer.study_id,
        verdict=answer.verdict,
    )


def _predicted_memory(resolved: ResolvedRequest, answers: Sequence[SizeAnswer]) -> list[tuple[float, bool]]:
    """Predicted peak memory in GiB of each answer's configuration, and whether its band is beyond the GPU's memory."""
    if not answers:
        return []
    rows = [from_configs([each.config], resolved.sequence, each.gpus, each.global_batch) for each in answers]
    workload = resolved.workload(max(each.global_batch for each in answers))
    evaluation = evaluate(resolved.shape, join(rows), workload, resolved.cluster)
    _, highest = MemoryCalibration().bounds(1.0)
    total, most = np.broadcast_to(evaluation.total_gib, len(answers)), resolved.cluster.memory_gib
    return [(float(gib), bool(gib * highest > most)) for gib in total]


def _impossible(kind: PlanKind, count: int, batch: int) -> ImpossibleRow:
    reason = (
        f"no layout of {counted(count, 'GPU')} has about {counted(batch, 'sample')} a step; raise global_batch, or use a "
        "number of GPUs that divides it"
    )
    return ImpossibleRow(gpu=kind.name, gpus=count, reason=reason)


def _too_small(kind: PlanKind, count: int) -> ImpossibleRow:
    gib = kind.resolved.cluster.memory_gib
    reason = f"no layout is predicted to fit into {gib:.1f} GiB on each of {counted(count, 'GPU')}; use more GPUs, or larger ones"
    return ImpossibleRow(gpu=kind.name, gpus=count, reason=reason)

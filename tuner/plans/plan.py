"""Plan of a training run: a row for each kind and number of GPUs, and the choices among the rows."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime

from shardtune.api_schemas.machines import networks
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.workload import MOST_SAMPLES
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.plan_rows import ImpossibleRow, PlanRow
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.objective import available_gib
from shardtune.tuner.plans import choices, run_days
from shardtune.tuner.plans.kind_rows import PlanBasis, PlanKind, rows_of_kind
from shardtune.tuner.plans.layouts import plan_layouts
from shardtune.tuner.plans.plan_notes import plan_notes
from shardtune.tuner.plans.study_of_plan import StudyOfPlan, read_study
from shardtune.tuner.prediction import catalogue, prediction_request
from shardtune.tuner.prediction.model_shape import ModelShape

_BATCH_FACTOR, _BATCH_POWER = 0.2920, 0.3271
"""Global batch in tokens that trains best, as a function of the run's FLOPs (DeepSeek LLM, arXiv:2401.02954, equation
1)."""


def plan(request: PlanRequest, now: datetime, objective: Objective = Objective(), study: Study | None = None) -> Plan:
    """Plan a training run over kinds and numbers of GPUs; pure, so `now`, a moment in UTC, comes from the caller, and
    so does the stored study that the request may name.

    Raises:
        ValueError: an unknown GPU or model, a deadline that has passed, a budget without prices, a batch that no
            number of GPUs divides, or a study of another training.
    """
    begins = run_days.first_moment(request.start, now)
    start = begins.date()
    _check_limits(request, start, now.date())
    _check_kinds(request)
    _check_study(request, study)
    request, used = (request, None) if study is None else read_study(request, study)
    kinds = [_resolve(request, name, objective) for name in dict.fromkeys(request.gpus)]
    _check_distinct(kinds)
    first = kinds[0].resolved
    batch = request.global_batch or _batch_of_study(request, used)
    batch = batch or default_batch(first.shape, request.tokens, first.sequence, max(request.counts))
    layouts = plan_layouts(first.shape, request.counts, request.gpus_per_node, first.sequence, batch)
    basis = PlanBasis(request, layouts, batch, begins, used)
    rows, impossible = list[PlanRow](), list[ImpossibleRow]()
    for kind in kinds:
        for row in rows_of_kind(basis, kind):
            if isinstance(row, PlanRow):
                rows.append(row)
            else:
                impossible.append(row)
    return Plan(
        model=request.model.name,
        parameters=first.shape.parameters,
        tokens=request.tokens,
        sequence_length=first.sequence,
        start=start,
        deadline=request.deadline,
        currency=request.currency,
        budget=request.budget,
        rows=tuple(rows),
        impossible=tuple(impossible),
        cheapest_in_time=choices.cheapest_in_time(rows),
        fastest_in_budget=choices.fastest_in_budget(rows) if request.budget is not None else None,
        knees=choices.knees(rows),
        notes=plan_notes(basis, kinds, rows),
    )


def _batch_of_study(request: PlanRequest, study: StudyOfPlan | None) -> int | None:
    """Samples per step of a plan's study, but at least one for each GPU; None without a study whose speeds are used."""
    if study is None or study.global_batch is None:
        return None
    return min(max(study.global_batch, _one_each(max(request.counts))), MOST_SAMPLES)


def _one_each(gpus: int) -> int:
    """Smallest power of two that is at least a number of GPUs."""
    return int(2 ** math.ceil(math.log2(gpus)))


def _check_study(request: PlanRequest, study: Study | None) -> None:
    """Check that the study which a request names is at hand, as only a service stores studies."""
    if request.study is not None and study is None:
        raise ValueError(
            f"study ({request.study}) is stored by a service, and this plan is made without one; name the service, or "
            "leave study out"
        )


def _check_kinds(request: PlanRequest) -> None:
    """Check that the catalogue knows each kind. A study that measured none of them would otherwise be the error."""
    for name in request.gpus:
        catalogue.find(name, "gpus")


def _check_distinct(kinds: Sequence[PlanKind]) -> None:
    names: dict[str, str] = {}
    for kind in kinds:
        earlier = names.setdefault(kind.resolved.cluster.gpu, kind.name)
        if earlier != kind.name:
            raise ValueError(f"gpus ({kind.name!r}) is the same kind as {earlier}; name it once")


def _check_limits(request: PlanRequest, start: date, today: date) -> None:
    run_days.check_deadline(request.deadline, start, today)
    # Not a rule of the request: the operator of a service may have added prices.
    if request.budget is not None and not request.prices:
        raise ValueError(f"budget ({request.budget:g}) needs prices; give the price of a GPU-hour for each kind")


def default_batch(shape: ModelShape, tokens: float, sequence: int, most_gpus: int) -> int:
    """Samples per step for a run of this many tokens: a power of two, and at least one sample for each GPU."""
    flops = shape.model_flops_per_token(1) * tokens
    best = _BATCH_FACTOR * flops**_BATCH_POWER / sequence
    samples = max(2 ** round(math.log2(max(best, 1.0))), _one_each(most_gpus))
    return int(min(samples, 2 ** math.floor(math.log2(MOST_SAMPLES))))


def _resolve(request: PlanRequest, name: str, objective: Objective) -> PlanKind:
    model = catalogue.find(name, "gpus")
    if model.memory_gib is None:
        raise ValueError(f"gpus ({name!r}) has no memory in the catalogue; name another kind")
    cluster = catalogue.parse_cluster(f"2x{request.gpus_per_node}x{model.name}")
    if request.network is not None:
        bandwidth = networks.gb_per_s_of_node(request.network, request.gpus_per_node)
        cluster = cluster.model_copy(update={"inter_node_gb_per_s": bandwidth})
    leaves = {"nodes_per_leaf": request.nodes_per_leaf, "oversubscription": request.oversubscription}
    cluster = cluster.model_copy(update=leaves)
    asked = PredictionRequest(
        model=request.model, cluster=cluster, sequence_length=request.sequence_length, precision=request.precision
    )
    resolved = prediction_request.resolve(asked)
    usable = resolved.cluster.model_copy(update={"memory_gib": available_gib(resolved.cluster, objective)})
    return PlanKind(name, replace(resolved, cluster=usable))

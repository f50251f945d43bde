"""Plan of a training run: a row for each kind and number of GPUs, and the choices among the rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines import networks
from shardtune.api_schemas.training.workload import MOST_SAMPLES
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.plans import DateBand, ImpossibleRow, Plan, PlanRequest, PlanRow
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.objective import available_gib
from shardtune.tuner.plans import choices, run_days
from shardtune.tuner.plans.goodput import expected_goodput
from shardtune.tuner.plans.layouts import PlanLayouts, plan_layouts
from shardtune.tuner.plans.speeds import ConfigSpeed, KindSpeeds, speeds_of_kind
from shardtune.tuner.prediction import catalogue, prediction_request
from shardtune.tuner.prediction.calibration import BAND_DEVIATIONS
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.prediction_request import ResolvedRequest

_BATCH_FACTOR, _BATCH_POWER = 0.2920, 0.3271
"""Global batch in tokens that trains best, as a function of the run's FLOPs (DeepSeek LLM, arXiv:2401.02954, equation
1)."""
_OVERHEAD_SIGMA = 0.05
"""Standard deviation of the logarithm of a run's hours, given its step time and stated losses of time: other overheads
are 10 to 20 %."""
_MOST_HOURS = 24.0 * 365 * 200


@dataclass(frozen=True)
class _Kind:
    """One kind of GPU of a plan, with its name in the request and its name in the catalogue."""

    name: str
    resolved: ResolvedRequest


def plan(request: PlanRequest, now: datetime, objective: Objective = Objective()) -> Plan:
    """Plan a training run over kinds and numbers of GPUs; pure, so `now`, a moment in UTC, comes from the caller.

    Raises:
        ValueError: an unknown GPU or model, a deadline that has passed, a budget without prices, or a batch that no
            number of GPUs divides.
    """
    begins = run_days.first_moment(request.start, now)
    start = begins.date()
    _check_limits(request, start)
    kinds = [_resolve(request, name, objective) for name in dict.fromkeys(request.gpus)]
    _check_distinct(kinds)
    first = kinds[0].resolved
    batch = request.global_batch or default_batch(first.shape, request.tokens, first.sequence, max(request.counts))
    layouts = plan_layouts(first.shape, request.counts, request.gpus_per_node, first.sequence, batch)
    rows, impossible = list[PlanRow](), list[ImpossibleRow]()
    for kind in kinds:
        for row in _rows_of_kind(request, kind, layouts, batch, begins):
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
        budget=request.budget,
        rows=tuple(rows),
        impossible=tuple(impossible),
        cheapest_in_time=choices.cheapest_in_time(rows),
        fastest_in_budget=choices.fastest_in_budget(rows) if request.budget is not None else None,
        knees=choices.knees(rows),
        notes=_notes(request, kinds, batch, begins),
    )


def _check_distinct(kinds: Sequence[_Kind]) -> None:
    names: dict[str, str] = {}
    for kind in kinds:
        earlier = names.setdefault(kind.resolved.cluster.gpu, kind.name)
        if earlier != kind.name:
            raise ValueError(f"gpus ({kind.name!r}) is the same kind as {earlier}; name it once")


def _check_limits(request: PlanRequest, start: date) -> None:
    if request.deadline is not None and request.deadline <= start:
        raise ValueError(f"deadline ({request.deadline}) must be after the start ({start}); give a later day")
    # Not a rule of the request: the operator of a service may have added prices.
    if request.budget is not None and not request.prices:
        raise ValueError(f"budget ({request.budget:g}) needs prices; give the price of a GPU-hour for each kind")


def default_batch(shape: ModelShape, tokens: float, sequence: int, most_gpus: int) -> int:
    """Samples per step for a run of this many tokens: a power of two, and at least one sample for each GPU."""
    flops = shape.model_flops_per_token(1) * tokens
    best = _BATCH_FACTOR * flops**_BATCH_POWER / sequence
    samples = max(2 ** round(math.log2(max(best, 1.0))), 2 ** math.ceil(math.log2(most_gpus)))
    return int(min(samples, 2 ** math.floor(math.log2(MOST_SAMPLES))))


def _resolve(request: PlanRequest, name: str, objective: Objective) -> _Kind:
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
    return _Kind(name, replace(resolved, cluster=usable))


def _rows_of_kind(
    request: PlanRequest, kind: _Kind, layouts: PlanLayouts | None, batch: int, begins: datetime
) -> Sequence[PlanRow | ImpossibleRow]:
    if layouts is None:
        return [_impossible(kind, count, batch) for count in request.counts]
    own = catalogue.find(kind.name)
    measured = [
        item
        for number, item in enumerate(request.measurements)
        if catalogue.find(item.gpu, f"measurements.{number}.gpu") == own
    ]
    speeds = speeds_of_kind(kind.resolved, layouts, batch, measured)
    if not speeds.knows_speed:
        reason = f"the catalogue has no rates of {kind.name}; measure them with `shardtune measure-hardware`"
        return [ImpossibleRow(gpu=kind.name, gpus=count, reason=reason) for count in request.counts]
    rows = list[PlanRow | ImpossibleRow]()
    for count in request.counts:
        fastest = speeds.fastest(count)
        if fastest is None:
            has_layout = bool((layouts.gpus == count).any())
            rows.append(_too_small(kind, count) if has_layout else _impossible(kind, count, batch))
        else:
            rows.append(_row(request, kind, speeds, fastest, count, begins))
    return rows


def _impossible(kind: _Kind, count: int, batch: int) -> ImpossibleRow:
    reason = (
        f"no layout of {counted(count, 'GPU')} has about {counted(batch, 'sample')} a step; raise global_batch, or use a "
        "number of GPUs that divides it"
    )
    return ImpossibleRow(gpu=kind.name, gpus=count, reason=reason)


def _too_small(kind: _Kind, count: int) -> ImpossibleRow:
    gib = kind.resolved.cluster.memory_gib
    reason = f"no layout is predicted to fit into {gib:.1f} GiB on each of {counted(count, 'GPU')}; use more GPUs, or larger ones"
    return ImpossibleRow(gpu=kind.name, gpus=count, reason=reason)


def _row(
    request: PlanRequest, kind: _Kind, speeds: KindSpeeds, fastest: ConfigSpeed, count: int, begins: datetime
) -> PlanRow | ImpossibleRow:
    goodput = expected_goodput(request.goodput, count)
    hours = _hours(request, fastest, count, goodput.fraction)
    if hours is None:
        reason = (
            f"with {request.goodput.failures_per_gpu_hour:g} failures per GPU-hour, {count} GPUs fail before they get on; "
            "lower failures_per_gpu_hour, checkpoint_s or restart_s"
        )
        return ImpossibleRow(gpu=kind.name, gpus=count, reason=reason)
    layouts, price = speeds.layouts, request.price_of(kind.name)
    gpu_hours = _times(hours, float(count))
    cost = _times(gpu_hours, price) if price is not None else None
    config = layouts.configs[fastest.index]
    return PlanRow(
        gpu=kind.name,
        gpus=count,
        config=config,
        description=config.describe(),
        evidence=fastest.evidence,
        global_batch=round(float(layouts.global_batches[fastest.index])),
        tokens_per_s_per_gpu=fastest.tokens_per_s_per_gpu,
        memory_gib=float(speeds.evaluation.total_gib[fastest.index]),
        may_not_fit=not bool(speeds.surely_fits[fastest.index]),
        goodput=goodput.fraction,
        checkpoint_interval_s=goodput.interval_s,
        hours=hours,
        gpu_hours=gpu_hours,
        cost=cost,
        finish=DateBand(**{name: run_days.day_after(begins, value) for name, value in _ends(hours)}),
        meets_deadline=_chance(hours, run_days.hours_until(request.deadline, begins)),
        within_budget=_chance(cost, request.budget) if cost is not None else None,
        extrapolated_from=fastest.anchors,
    )


def _hours(request: PlanRequest, fastest: ConfigSpeed, count: int, goodput: float) -> Band | None:
    """Expected hours of the run; None if it never ends because failures come faster than it can recover."""
    if goodput <= 0:
        return None
    speed, scattered = fastest.tokens_per_s_per_gpu, fastest.slowness_if_scattered
    expected = request.tokens / (speed.expected * count * goodput) / 3600.0
    if expected > _MOST_HOURS * 1e6:
        return None
    spread = (math.log(speed.high / speed.low) - math.log(scattered)) / 2.0
    width = math.exp(math.hypot(spread, BAND_DEVIATIONS * _OVERHEAD_SIGMA))
    return Band(expected=expected, low=expected / width, high=expected * width * scattered)


def _times(band: Band, factor: float) -> Band:
    return Band(expected=band.expected * factor, low=band.low * factor, high=band.high * factor)


def _ends(hours: Band) -> Sequence[tuple[str, float]]:
    return (("expected", hours.expected), ("earliest", hours.low), ("latest", hours.high))


def _chance(band: Band, limit: float | None) -> Literal["surely", "likely", "unlikely", "no"] | None:
    if limit is None:
        return None
    if band.high <= limit:
        return "surely"
    if band.expected <= limit:
        return "likely"
    return "unlikely" if band.low <= limit else "no"


def _notes(request: PlanRequest, kinds: Sequence[_Kind], batch: int, begins: datetime) -> tuple[str, ...]:
    goodput = request.goodput
    notes = [
        f"{counted(batch, 'sample')} a step for every number of GPUs, as near as the ranks divide it",
        f"goodput: {goodput.overhead:.0%} over step time, {goodput.failures_per_gpu_hour:g} failures per GPU-hour, "
        f"{goodput.checkpoint_s:g} s a checkpoint, {goodput.restart_s:g} s a restart",
        "predicted or projected, unless a row says that you measured it; bands are 90 %",
        f"days are those of UTC, and the run starts on {begins.date()} at {begins:%H:%M}",
        "layouts are not compiled and compute the loss of all logits, with AdamW; `predict` ranks the others, too",
    ]
    if request.network is not None:
        notes.append(networks.network_note(request.network, request.gpus_per_node))
    leaves = networks.leaf_switches_note(request.nodes_per_leaf, request.oversubscription)
    notes += [] if leaves is None else [leaves]
    unpriced = [kind.name for kind in kinds if request.price_of(kind.name) is None]
    if not request.prices:
        notes.append("no prices were given: the cheapest row is that of the fewest GPU-hours")
    elif unpriced:
        notes.append(f"no price of {', '.join(unpriced)}: not compared by cost")
    for kind in kinds:
        notes += [f"{kind.name}: {note}" for note in kind.resolved.notes()]
    return tuple(notes)

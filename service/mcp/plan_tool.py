"""Tool `plan`: hours, money and finish date of a training run."""

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.service.mcp.errors import rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.schemas.answers import PlanAnswer, PlanChoice
from shardtune.service.mcp.schemas.arguments import PlanArguments
from shardtune.service.mcp.schemas.figures import GIB, SPEED, Figure, figure
from shardtune.service.mcp.study_tools import find_study
from shardtune.service.wording import plan_words

_MONEY = "money in the currency of the prices"
"""Unit of costs if the plan does not know their currency."""
_HOURS_OF_DAY = 24.0


def plan(product: Product, arguments: PlanArguments) -> PlanAnswer:
    """Plan a training run over kinds and numbers of GPUs."""
    fields = arguments.model_dump(exclude={"rows", "overhead"})
    fields |= {"goodput": {"overhead": arguments.overhead}, "study": _study_id(product, arguments.study)}
    with rejections(PlanRequest):
        planned = product.plan(PlanRequest.model_validate(fields))
    return plan_answer(planned, arguments.rows)


def _study_id(product: Product, name: str | None) -> str | None:
    """Return the id of the study that a call names, such as `last`; a plan without a service rejects any study itself."""
    if name != "last" or product.client is None:
        return name
    with rejections(PlanRequest):
        return find_study(product.client, name).study_id


def plan_answer(planned: Plan, most_rows: int) -> PlanAnswer:
    """Return a plan with its figures, limited to the `most_rows` rows with the fewest GPU-hours."""
    rows = sorted(planned.rows, key=lambda row: row.gpu_hours.expected)
    return PlanAnswer(
        summary=_in_words(planned),
        model=planned.model,
        parameters=planned.parameters,
        tokens=planned.tokens,
        sequence_length=planned.sequence_length,
        choices=tuple(_choice(planned, row) for row in rows[:most_rows]),
        cheapest_in_time=None if planned.cheapest_in_time is None else _choice(planned, planned.cheapest_in_time),
        fastest_in_budget=None if planned.fastest_in_budget is None else _choice(planned, planned.fastest_in_budget),
        impossible=planned.impossible,
        omitted=max(0, len(rows) - most_rows),
        notes=planned.notes,
    )


def _choice(planned: Plan, row: PlanRow) -> PlanChoice:
    return PlanChoice(
        gpu=row.gpu,
        gpus=row.gpus,
        description=row.description,
        speed=_figure(row, row.tokens_per_s_per_gpu, SPEED),
        verdict=row.verdict,
        memory=_memory(row),
        may_not_fit=row.may_not_fit,
        days=_figure(row, row.hours, "days", _HOURS_OF_DAY),
        gpu_hours=_figure(row, row.gpu_hours, "GPU-hours"),
        cost=None if row.cost is None else _figure(row, row.cost, planned.currency or _MONEY),
        finish=row.finish,
        meets_deadline=row.meets_deadline,
        within_budget=row.within_budget,
    )


def _memory(row: PlanRow) -> Figure:
    if row.memory_evidence == "predicted":
        return figure(row.memory_gib, GIB, "predicted", "sum of the terms of the memory")
    return figure(row.memory_gib, GIB, row.memory_evidence, f"study {row.study_id}, peak of tensors alone")


def _figure(row: PlanRow, band: Band, unit: str, divisor: float = 1.0) -> Figure:
    basis, source = row.evidence, _source(row)
    if basis == "measured" and unit != SPEED:
        # Nobody has run so long: time and cost follow from the measured speed and the assumed goodput.
        basis, source = "projected", f"calculated from {source}"
    return figure(band.expected / divisor, unit, basis, source, (band.low / divisor, band.high / divisor))


def _source(row: PlanRow) -> str:
    """Say on what the speed of a row rests, and for a measured one whether its study confirmed the configuration."""
    gpus, study = ", ".join(map(str, row.extrapolated_from)), f"study {row.study_id}"
    if row.evidence == "predicted":
        return "predictor, no trial"
    if row.evidence == "projected":
        return f"projection from measurements on {gpus} GPUs" + ("" if row.study_id is None else f" of {study}")
    if row.study_id is None:
        return f"your measurement on {row.gpus} GPUs"
    return f"{study} on {row.gpus} GPUs, {plan_words.source(row)}"


def _in_words(planned: Plan) -> str:
    row = planned.cheapest_in_time
    if row is None:
        reason = "no row is expected to end in time" if planned.rows else "nothing can run on these GPUs"
        return f"{planned.model}: {reason}."
    days = _figure(row, row.hours, "days", _HOURS_OF_DAY)
    cost = "" if row.cost is None else f", cost {_figure(row, row.cost, planned.currency or _MONEY).in_words()}"
    return (
        f"{'Cheapest' if row.cost else 'Fewest GPU-hours'}: {row.gpus} × {row.gpu}, {days.in_words()}, ends "
        f"{row.finish.expected} ({row.finish.earliest} to {row.finish.latest}){cost}."
    )

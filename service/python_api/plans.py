"""`plan`: hours, money and finish date of a training run, as `shardtune plan` computes them."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from numbers import Integral
from pathlib import Path
from typing import Any

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.plans import MOST_CELLS, Plan
from shardtune.service.cli import connection
from shardtune.service.cli.plan import options, planner
from shardtune.service.cli.plan.options import StatedPrices
from shardtune.service.client import ServiceClient
from shardtune.service.mcp import plan_tool
from shardtune.service.mcp.schemas.answers import PlanChoice
from shardtune.service.python_api import arguments
from shardtune.service.python_api.arguments import ModelLike
from shardtune.service.python_api.failures import python_errors
from shardtune.service.python_api.result import Result
from shardtune.service.python_api.rows import AnswerRow, DayFigure, RowTable, cells
from shardtune.service.python_api.service_calls import ServiceLike, open_client, service_errors


@dataclass(frozen=True, repr=False)
class TrainingPlan(Result):
    """Plan of a training run with two tables: `choices`, and `impossible`, which lists the GPU counts on which no
    configuration can run, with the reasons."""

    values: Plan | None = None
    """All values of the plan."""


def plan(
    model: ModelLike,
    *,
    tokens: float,
    gpus: str | Sequence[str],
    counts: int | Sequence[int],
    gpus_per_node: int = 8,
    network: str | None = None,
    nodes_per_leaf: int | None = None,
    oversubscription: float | None = None,
    prices: Mapping[str, float] | str | None = None,
    spot: bool = False,
    currency: str | None = None,
    budget: float | None = None,
    start: date | str | None = None,
    deadline: date | str | None = None,
    sequence_length: int | None = None,
    global_batch: int | None = None,
    precision: str | None = None,
    goodput: Mapping[str, float] | None = None,
    measurements: Sequence[Mapping[str, Any]] = (),
    study: str | None = None,
    service: ServiceLike | None = None,
    key_file: str | Path | None = None,
) -> TrainingPlan:
    """Plan a training run: hours, money and finish date by kind and number of GPUs, without running anything.

    Args:
        model: preset, Hugging Face id, path, content of a `config.json`, or a study file.
        tokens: tokens that the run trains on, such as 300e9.
        gpus: kinds of GPUs by their names in the catalogue, such as `["h100", "h200"]`.
        counts: numbers of GPUs, such as `[8, 16, 32]`.
        gpus_per_node: GPUs of a node.
        network: network between nodes by name, such as `infiniband-ndr` (default: the usual one of each kind).
        nodes_per_leaf: nodes below one leaf switch (default: all of them).
        oversubscription: bandwidth of a leaf switch's nodes divided by that of its uplinks, such as 2 for 2:1 (default: 1).
        prices: price of a GPU-hour by kind, in your currency; or the path of a JSON file with such prices; or `sky` for the
            lowest prices of SkyPilot's catalogue on this machine, `sky:lambda` for those of one cloud.
        spot: with the prices of SkyPilot's catalogue: take those of spot instances.
        currency: currency of the prices and the budget, such as `USD`, which the plan then names.
        budget: money that the run may cost.
        start: first day (UTC) of the run, from midnight (default: the run starts now).
        deadline: last day on which the run may end.
        sequence_length: tokens per sample (default: the study file's, or the model's maximum up to 4096).
        global_batch: samples per step (default: those of the study or its file, or by the run's FLOPs).
        precision: dtypes, such as `bf16-mixed` (default: the study file's, or by the device).
        goodput: assumptions about lost time, such as `{"overhead": 0.2, "failures_per_gpu_hour": 1e-5}`.
        measurements: measurements on a few GPUs (`gpu`, `gpus`, `config`, `tokens_per_s_per_gpu`), from which larger sizes
            are projected.
        study: id of a stored study of this model, or `last`: rows are measured or projected by it where it has an answer, and
            its resume check gives the times of checkpoints that `goodput` leaves out.
        service: address or client of the service that stores the study (default: `SHARDTUNE_SERVICE_URL`, or without it
            the default address of `shardtune serve`).
        key_file: file with the API key (default: `SHARDTUNE_API_KEY` or `SHARDTUNE_API_KEY_FILE`).

    Raises:
        InputError: a value is unknown or wrong; each line names field, value and remedy.
        PlatformFailure: the hub or the service did not answer.
    """
    stored = None if study is None else _stored_study(study, service, key_file)
    with python_errors():
        kinds = [gpus] if isinstance(gpus, str) else list(gpus)
        money = _stated_prices(prices, currency, kinds, gpus_per_node, is_spot=spot)
        workload = {"sequence_length": sequence_length, "global_batch": global_batch, "precision": precision}
        values = planner.plannable_values(arguments.read_model(model).values)
        values |= arguments.stated(workload | {"prices": money.prices, "goodput": goodput})
        values |= {
            "tokens": tokens,
            "gpus": kinds,
            "counts": _whole([counts] if isinstance(counts, int | Integral) else list(counts)),
            "gpus_per_node": gpus_per_node,
            "network": network,
            "nodes_per_leaf": nodes_per_leaf,
            "oversubscription": oversubscription,
            "currency": money.currency,
            "budget": budget,
            "start": planner.read_day(start, "start"),
            "deadline": planner.read_day(deadline, "deadline"),
            "measurements": list(measurements),
        }
        return _answer(money.noted(planner.make_plan(values, stored)))


def _stored_study(name: str, service: ServiceLike | None, key_file: str | Path | None) -> Study:
    """Read a study that a service stores; a client that the caller passed stays open."""
    client = open_client(service, key_file)
    with service_errors(), nullcontext(client) if isinstance(service, ServiceClient) else client:
        return connection.find_study(client, name)


def _stated_prices(
    prices: Mapping[str, float] | str | None,
    currency: str | None,
    kinds: Sequence[str],
    gpus_per_node: int,
    *,
    is_spot: bool,
) -> StatedPrices:
    source = prices if isinstance(prices, str) else None
    read = options.read_prices(options.PriceOptions(None, source, currency, is_spot), kinds, gpus_per_node)
    return read if prices is None or isinstance(prices, str) else read._replace(prices=prices)


def _whole(counts: Sequence[Any]) -> list[Any]:
    """Convert NumPy integers among the GPU counts into Python integers."""
    return [int(count) if isinstance(count, Integral) else count for count in counts]


def _answer(made: Plan) -> TrainingPlan:
    answer = plan_tool.plan_answer(made, MOST_CELLS)
    configs = {(row.gpu, row.gpus): row.config for row in made.rows}
    unit = made.currency or "in your currency"
    choices = [AnswerRow(_choice(choice, unit), configs[choice.gpu, choice.gpus]) for choice in answer.choices]
    impossible = [AnswerRow(cells(gpu=row.gpu, gpus=row.gpus, reason=row.reason)) for row in answer.impossible]
    subject = (
        f"{made.model} ({made.parameters / 1e9:.2f} billion parameters), {made.tokens:,.0f} tokens, sequence "
        f"{made.sequence_length:,}, start {made.start}"
    )
    tables = (
        RowTable("choices", "Kinds and numbers of GPUs, the fewest GPU-hours first", choices),
        RowTable("impossible", "Nothing can run on these", impossible),
    )
    return TrainingPlan(answer.summary, tables, subject, answer.notes, made)


def _choice(choice: PlanChoice, currency: str) -> Mapping[str, Any]:
    return cells(
        gpus=choice.gpus,
        gpu=choice.gpu,
        configuration=choice.description + (" (may not fit)" if choice.may_not_fit else ""),
        days=choice.days,
        gpu_hours=choice.gpu_hours,
        cost=None if choice.cost is None else choice.cost.model_copy(update={"unit": currency}),
        ends=DayFigure(
            choice.finish.expected,
            choice.finish.earliest,
            choice.finish.latest,
            "",
            choice.days.basis,
            choice.days.band,
            choice.days.source,
        ),
        in_time=choice.meets_deadline,
        in_budget=choice.within_budget,
        speed=choice.speed,
        verdict=choice.verdict,
        memory=choice.memory,
    )

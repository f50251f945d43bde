"""`plan`: hours, money and finish date of a training run, as `shardtune plan` computes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from numbers import Integral
from typing import Any

from shardtune.api_schemas.trials.plans import MOST_CELLS, Plan
from shardtune.service.cli.plan import planner
from shardtune.service.mcp import plan_tool
from shardtune.service.mcp.schemas.answers import PlanChoice
from shardtune.service.python_api import arguments
from shardtune.service.python_api.arguments import ModelLike
from shardtune.service.python_api.failures import python_errors
from shardtune.service.python_api.result import Result
from shardtune.service.python_api.rows import AnswerRow, DayFigure, RowTable, cells


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
    prices: Mapping[str, float] | None = None,
    budget: float | None = None,
    start: date | str | None = None,
    deadline: date | str | None = None,
    sequence_length: int | None = None,
    global_batch: int | None = None,
    precision: str | None = None,
    goodput: Mapping[str, float] | None = None,
    measurements: Sequence[Mapping[str, Any]] = (),
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
        prices: price of a GPU-hour by kind, in your currency.
        budget: money that the run may cost.
        start: first day (UTC) of the run, from midnight (default: the run starts now).
        deadline: last day on which the run may end.
        sequence_length: tokens per sample (default: the study file's, or the model's maximum up to 4096).
        global_batch: samples per step (default: the study file's, or by the run's FLOPs).
        precision: dtypes, such as `bf16-mixed` (default: the study file's, or by the device).
        goodput: assumptions about lost time, such as `{"overhead": 0.2, "failures_per_gpu_hour": 1e-5}`.
        measurements: measurements on a few GPUs (`gpu`, `gpus`, `config`, `tokens_per_s_per_gpu`), from which larger sizes
            are projected.

    Raises:
        InputError: a value is unknown or wrong; each line names field, value and remedy.
        PlatformFailure: the hub did not answer.
    """
    with python_errors():
        values = planner.plannable_values(arguments.read_model(model).values)
        values |= arguments.stated(
            {
                "sequence_length": sequence_length,
                "global_batch": global_batch,
                "precision": precision,
                "prices": prices,
                "goodput": goodput,
            }
        )
        values |= {
            "tokens": tokens,
            "gpus": [gpus] if isinstance(gpus, str) else list(gpus),
            "counts": _whole([counts] if isinstance(counts, int | Integral) else list(counts)),
            "gpus_per_node": gpus_per_node,
            "network": network,
            "nodes_per_leaf": nodes_per_leaf,
            "oversubscription": oversubscription,
            "budget": budget,
            "start": planner.read_day(start, "start"),
            "deadline": planner.read_day(deadline, "deadline"),
            "measurements": list(measurements),
        }
        return _planned(planner.make_plan(values))


def _whole(counts: Sequence[Any]) -> list[Any]:
    """Convert NumPy integers among the GPU counts into Python integers."""
    return [int(count) if isinstance(count, Integral) else count for count in counts]


def _planned(made: Plan) -> TrainingPlan:
    answer = plan_tool.plan_answer(made, MOST_CELLS)
    configs = {(row.gpu, row.gpus): row.config for row in made.rows}
    choices = [AnswerRow(_choice(choice), configs[choice.gpu, choice.gpus]) for choice in answer.choices]
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


def _choice(choice: PlanChoice) -> Mapping[str, Any]:
    return cells(
        gpus=choice.gpus,
        gpu=choice.gpu,
        configuration=choice.description + (" (may not fit)" if choice.may_not_fit else ""),
        days=choice.days,
        gpu_hours=choice.gpu_hours,
        cost=None if choice.cost is None else choice.cost.model_copy(update={"unit": "in your currency"}),
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
        memory=choice.memory,
    )

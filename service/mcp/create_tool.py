"""Tool `studies_create`: it estimates first, and starts only what the user has agreed to, within the user's budget."""

from typing import Any

from shardtune.api_schemas.studies.study_cost import Range, StudyCost
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.client import ServiceClient, ServiceError
from shardtune.service.mcp import confirmations, measured_rows
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.schemas.figures import Figure, figure
from shardtune.service.mcp.schemas.study_answers import StudiesCreateAnswer
from shardtune.service.mcp.schemas.study_arguments import StudiesCreateArguments

_ESTIMATE = "estimate from the budget and predicted step times"
_NO_BUDGET = (
    "max_gpu_seconds (missing): a study costs GPU-seconds; ask the user for the budget and add it (GPUs × seconds: one "
    "hour of 8 GPUs is 28800)"
)


def studies_create(product: Product, arguments: StudiesCreateArguments) -> StudiesCreateAnswer:
    """Estimate the cost of a study, or create it if the call has the estimate's confirmation code."""
    client = product.service("studies_create")
    with rejections(StudyRequest):
        spec = _spec(arguments)
        if arguments.max_gpu_seconds is None:
            # Estimated nevertheless: the user need not think of a budget for a study that nothing could run.
            raise ToolRejected(*_obstacles(client.study_cost(spec)), _NO_BUDGET)
        # With every field of the request, the budget included.
        key, request = product.confirmation_key(), f"{arguments.study_id or ''} {spec.canonical_json()}"
        code = arguments.confirmation
        if code is None:
            return _estimate(arguments.max_gpu_seconds, client.study_cost(spec), confirmations.issue(key, request))
        confirmations.check(key, request, code)
        study = client.create_study(spec, arguments.study_id, confirmations.idempotency_key(code))
    answer = _estimate(arguments.max_gpu_seconds, _cost(client, spec), None)
    return answer.model_copy(
        update={
            "state": "created",
            "summary": f"Created {study.study_id}; this confirmation creates no other. Follow it with studies_status.",
            "study": measured_rows.listed_study(study),
        }
    )


def _obstacles(cost: StudyCost | None) -> tuple[str, ...]:
    """Return the reason why the service would reject the study now, if there is one."""
    return () if cost is None or cost.no_worker is None else (cost.no_worker,)


def _cost(client: ServiceClient, spec: StudyRequest) -> StudyCost | None:
    """Return the cost estimate of a study that was created; None if it can no longer be computed, for example because
    the worker has ended."""
    try:
        return client.study_cost(spec)
    except ServiceError:
        # The answer must name the study whatever happens to the estimate.
        return None


def _spec(arguments: StudiesCreateArguments) -> StudyRequest:
    budget: dict[str, Any] = {"max_gpu_seconds": arguments.max_gpu_seconds, "max_trials": arguments.max_trials}
    budget |= {} if arguments.max_pairs is None else {"max_pairs": arguments.max_pairs}
    workload: dict[str, Any] = {
        "sequence_length": arguments.sequence_length,
        "global_batch": arguments.global_batch,
        "precision": arguments.precision,
        "optimizer": arguments.optimizer,
        "adapter": arguments.adapter,
        "data": arguments.data,
        "attention": arguments.attention,
    }
    return StudyRequest.model_validate(
        {
            "model": arguments.model,
            "cluster": arguments.cluster,
            "workload": workload,
            "budget": budget,
            "baseline": arguments.baseline,
            "space": arguments.space,
        }
    )


def _estimate(max_gpu_seconds: float, cost: StudyCost | None, code: str | None) -> StudiesCreateAnswer:
    gpu_hours = None if cost is None else _range(cost.gpu_hours, "GPU-hours")
    gain = None if cost is None else cost.expected_gain
    expected = "cost unknown" if gpu_hours is None else f"about {gpu_hours.low:g} to {gpu_hours.high:g} GPU-hours"
    cannot_start = "".join(f"It cannot start now: {obstacle}. " for obstacle in _obstacles(cost))
    return StudiesCreateAnswer(
        summary=(
            f"{cannot_start}Estimate of a study that was not started: it would take {expected}, at most {max_gpu_seconds / 3600:g} GPU-hours by the "
            f"budget{_beyond_limit(cost)}. Show this to the user; if they agree, repeat the call with the confirmation."
        ),
        state="needs_confirmation",
        confirmation=code,
        max_gpu_seconds=max_gpu_seconds,
        gpu_hours=gpu_hours,
        minutes=None if cost is None else _range(cost.minutes, "minutes"),
        expected_gain=None
        if gain is None
        else figure(
            gain.value, "ratio of speeds", "predicted", f"{gain.fastest} over {gain.baseline}", (gain.low, gain.high)
        ),
        stops=() if cost is None else cost.stops,
        study=None,
    )


def _beyond_limit(cost: StudyCost | None) -> str:
    """Return the runs that the budget's limit does not end, as a part of a sentence."""
    recipes = cost is not None and cost.recipe_runs.high > 0
    return " (and the rest of a run that is under way then" + ("; recipes are compared beyond it)" if recipes else ")")


def _range(value: Range | None, unit: str) -> Figure | None:
    if value is None:
        return None
    middle = (value.low + value.high) / 2
    return figure(middle, unit, "predicted", _ESTIMATE, (value.low, value.high), "lowest and highest expected value")

"""Tool `studies_create`: it estimates first, and starts only what the user has agreed to, within the user's budget."""

import hashlib
from typing import Any

from shardtune.api_schemas.studies.study import StudyRequest
from shardtune.api_schemas.studies.study_cost import Range, StudyCost
from shardtune.service.mcp import measured_rows
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.service.mcp.product import Product
from shardtune.service.mcp.schemas.figures import Figure, figure
from shardtune.service.mcp.schemas.study_answers import StudiesCreateAnswer
from shardtune.service.mcp.schemas.study_arguments import StudiesCreateArguments

_CODE_LENGTH = 12
_ESTIMATE = "estimate from the budget and predicted step times"


def studies_create(product: Product, arguments: StudiesCreateArguments) -> StudiesCreateAnswer:
    """Estimate a study, or create it with the code of the estimate."""
    client = product.service("studies_create")
    if arguments.max_gpu_seconds is None:
        raise ToolRejected(
            "max_gpu_seconds (missing): a study costs GPU-seconds; ask the user for the budget and add it "
            "(GPUs × seconds: one hour of 8 GPUs is 28800)"
        )
    with rejections(StudyRequest):
        spec = _spec(arguments)
        code = confirmation_code(spec, arguments.study_id)
        if arguments.confirmation is not None and arguments.confirmation != code:
            raise ToolRejected(
                f"confirmation ({arguments.confirmation}) does not belong to this request; call without confirmation, show "
                "the estimate to the user, and repeat the same call with the code that it returns"
            )
        cost = client.study_cost(spec)
        if arguments.confirmation is None:
            return _estimate(arguments.max_gpu_seconds, cost, code)
        study = client.create_study(spec, arguments.study_id)
    answer = _estimate(arguments.max_gpu_seconds, cost, code)
    return answer.model_copy(
        update={
            "state": "created",
            "summary": f"Created {study.study_id}, {study.state.value}; follow it with studies_status.",
            "confirmation": None,
            "study": measured_rows.listed_study(study),
        }
    )


def confirmation_code(spec: StudyRequest, study_id: str | None) -> str:
    """Return the code of an estimate, which changes with every field of the request, the budget included."""
    # Derived, not stored: any replica can check it, and a repeated call gets the same one.
    text = f"{study_id or ''} {spec.canonical_json()}"
    return hashlib.sha256(text.encode()).hexdigest()[:_CODE_LENGTH]


def _spec(arguments: StudiesCreateArguments) -> StudyRequest:
    budget: dict[str, Any] = {"max_gpu_seconds": arguments.max_gpu_seconds, "max_trials": arguments.max_trials}
    workload: dict[str, Any] = {
        "sequence_length": arguments.sequence_length,
        "global_batch": arguments.global_batch,
        "precision": arguments.precision,
        "optimizer": arguments.optimizer,
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


def _estimate(max_gpu_seconds: float, cost: StudyCost, code: str) -> StudiesCreateAnswer:
    gpu_hours, gain = _range(cost.gpu_hours, "GPU-hours"), cost.expected_gain
    expected = "cost unknown" if gpu_hours is None else f"about {gpu_hours.low:g} to {gpu_hours.high:g} GPU-hours"
    return StudiesCreateAnswer(
        summary=(
            f"Estimate of a study that was not started: it would take {expected}, at most {max_gpu_seconds / 3600:g} GPU-hours by the "
            "budget. Show this to the user; if they agree, repeat the call with the confirmation."
        ),
        state="needs_confirmation",
        confirmation=code,
        max_gpu_seconds=max_gpu_seconds,
        gpu_hours=gpu_hours,
        minutes=_range(cost.minutes, "minutes"),
        expected_gain=None
        if gain is None
        else figure(
            gain.value, "ratio of speeds", "predicted", f"{gain.fastest} over {gain.baseline}", (gain.low, gain.high)
        ),
        stops=cost.stops,
        study=None,
    )


def _range(value: Range | None, unit: str) -> Figure | None:
    if value is None:
        return None
    middle = (value.low + value.high) / 2
    return figure(middle, unit, "predicted", _ESTIMATE, (value.low, value.high), "lowest and highest expected value")

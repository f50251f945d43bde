"""Routes of predictions: memory and speed of configurations with their reasons, computed without a worker."""

from fastapi import APIRouter

from shardtune.api_schemas.studies.study_cost import StudyCost
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.computed_answers import computed
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.process.context import ContextDep
from shardtune.service.studies import predictions, study_cost

router = APIRouter(prefix="/v1/predictions", tags=["predictions"], dependencies=[requires(Action.PREDICT)])


@router.post("", responses=problems("hub_unreachable"))
def create_prediction(context: ContextDep, request: PredictionRequest, once: IdempotencyDep) -> PredictionTable:
    """Predict memory and speed of configurations without running them; a request that names no configurations gets
    one prediction for each strategy (such as DDP or FSDP2).
    """
    return computed(
        context,
        once,
        lambda: predictions.predict(context, request),
        ("model", "cluster", "hardware", "sequence_length"),
    )


@router.post("/study-cost", responses=problems("no_worker", "hub_unreachable"))
def estimate_study_cost(context: ContextDep, request: StudyRequest, once: IdempotencyDep) -> StudyCost:
    """Estimate what a study would cost and gain, before anything runs: trials, minutes, GPU-hours, the expected gain
    with its band, and the limits that would stop the study. Nothing is stored.
    """
    return computed(context, once, lambda: study_cost.estimate(context, request), ("model", "workload", "cluster"))

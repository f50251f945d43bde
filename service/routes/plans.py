"""Routes of plans: hours, money and finish date of a training run, computed without a worker."""

from collections.abc import Mapping

from fastapi import APIRouter

from shardtune.api_schemas.trials.plans import Plan, PlanRequest, fold_gpu_name
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.computed_answers import computed
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyDep, IdempotencyKey
from shardtune.service.hub import named_models
from shardtune.service.process.context import Context, ContextDep
from shardtune.tuner.plans.plan import plan
from shardtune.tuner.prediction import catalogue

router = APIRouter(prefix="/v1/plans", tags=["plans"], dependencies=[requires(Action.PREDICT)])


@router.post("", responses=problems("hub_unreachable"))
def create_plan(context: ContextDep, request: PlanRequest, once: IdempotencyDep) -> Plan:
    """Plan a training run over kinds and numbers of GPUs: for each, the best configuration, hours, cost, and the day
    on which the training ends, each with its 90 % band.
    """

    return computed_plan(context, request, once)


def with_operator_prices(request: PlanRequest, prices: Mapping[str, float]) -> PlanRequest:
    """Return a request with the operator's prices for its kinds of GPUs that have none."""
    missing = {name: _price_of(name, prices) for name in request.gpus if request.price_of(name) is None}
    found = {name: price for name, price in missing.items() if price is not None}
    return request.model_copy(update={"prices": request.prices | found}) if found else request


def _price_of(name: str, prices: Mapping[str, float]) -> float | None:
    return next((price for kind, price in prices.items() if _kind(kind) == _kind(name)), None)


def _kind(name: str) -> str:
    try:
        return catalogue.find(name).name
    except ValueError:
        return fold_gpu_name(name)


def computed_plan(context: Context, request: PlanRequest, once: IdempotencyKey = NO_KEY) -> Plan:
    """Return the plan that a request asks for, beginning now unless the request names a day. The REST route and the
    page of plans share this function.

    Raises:
        Invalid: the request's values cannot be used.
        ApiError: code `hub_unreachable`: the model hub does not answer.
    """

    def compute() -> Plan:
        priced = with_operator_prices(named_models.with_config_of(context, request), context.settings.gpu_prices)
        made = plan(priced, context.now())
        own = [name for name in priced.prices if name not in request.prices]
        if not own:
            return made
        note = f"price of {', '.join(own)}: that of the service's setting gpu_prices"
        return made.model_copy(update={"notes": (*made.notes, note)})

    return computed(context, once, compute, ("model", "tokens", "prices", "goodput"))

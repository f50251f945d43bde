"""Routes of plans: hours, money and finish date of a training run, computed without a worker."""

from fastapi import APIRouter

from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.computed_answers import computed
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyDep, IdempotencyKey
from shardtune.service.hub import named_models
from shardtune.service.process.context import Context, ContextDep
from shardtune.tuner.plans.operator_prices import with_operator_prices
from shardtune.tuner.plans.plan import plan

router = APIRouter(prefix="/v1/plans", tags=["plans"], dependencies=[requires(Action.PREDICT)])


@router.post("", responses=problems("hub_unreachable"))
def create_plan(context: ContextDep, request: PlanRequest, once: IdempotencyDep) -> Plan:
    """Plan a training run over kinds and numbers of GPUs: for each, the best configuration, hours, cost, and the day
    on which the training ends, each with its 90 % band.
    """

    return computed_plan(context, request, once)


def computed_plan(context: Context, request: PlanRequest, once: IdempotencyKey = NO_KEY) -> Plan:
    """Return the plan that a request asks for, beginning now unless the request names a day. The REST route and the
    page of plans share this function.

    Raises:
        Invalid: the request's values cannot be used.
        ApiError: code `hub_unreachable`: the model hub does not answer.
    """

    def compute() -> Plan:
        complete, settings = named_models.with_config_of(context, request), context.settings
        priced = with_operator_prices(complete, settings.gpu_prices, settings.currency)
        made = plan(priced.request, context.now())
        return made.model_copy(update={"notes": (*made.notes, *priced.notes)})

    return computed(context, once, compute, ("model", "tokens", "prices", "goodput"))

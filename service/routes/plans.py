"""Routes of plans: hours, money and finish date of a training run, computed without a worker."""

from fastapi import APIRouter

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.service.access.actions import Action, check_scope
from shardtune.service.access.auth import requires
from shardtune.service.http.computed_answers import computed
from shardtune.service.http.error_codes import problems
from shardtune.service.http.errors import NotFound, invalid
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyDep, IdempotencyKey
from shardtune.service.hub import named_models
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.studies import create_and_read
from shardtune.tuner.plans.operator_prices import with_operator_prices
from shardtune.tuner.plans.plan import plan

router = APIRouter(prefix="/v1/plans", tags=["plans"], dependencies=[requires(Action.PREDICT)])


@router.post("", responses=problems("hub_unreachable"))
def create_plan(context: ContextDep, request: PlanRequest, once: IdempotencyDep) -> Plan:
    """Plan a training run over kinds and numbers of GPUs: for each, the best configuration, hours, cost, and the day
    on which the training ends, each with its 90 % band. Each row says whether its speed was predicted, projected, or
    measured by the study that the request names.
    """

    return computed_plan(context, request, once)


def computed_plan(context: Context, request: PlanRequest, once: IdempotencyKey = NO_KEY) -> Plan:
    """Return the plan that a request asks for, beginning now unless the request names a day. The REST route and the
    page of plans share this function.

    Raises:
        Invalid: the request's values cannot be used, or its study is another training or does not exist.
        Forbidden: the request names a study, and the sender may not read studies.
        ApiError: code `hub_unreachable`: the model hub does not answer.
    """

    study = _stored_study(context, request)

    def compute() -> Plan:
        complete, settings = named_models.with_config_of(context, request), context.settings
        priced = with_operator_prices(complete, settings.gpu_prices, settings.currency)
        made = plan(priced.request, context.now(), study=study)
        return made.model_copy(update={"notes": (*made.notes, *priced.notes)})

    return computed(context, once, compute, ("model", "tokens", "prices", "goodput"))


def _stored_study(context: Context, request: PlanRequest) -> Study | None:
    """Read the study that a request names; None if it names none.

    Raises:
        Invalid: no study of the sender's projects has this id.
        Forbidden: the sender may predict, and not read studies.
    """
    if request.study is None:
        return None
    # A key that reads recommendations may plan as well, and their studies hold more than they.
    check_scope(context.principal, Action.READ_STUDIES)
    try:
        return create_and_read.read_study(context, request.study)
    except NotFound:
        message = f"study ({request.study}) is not stored here; name a stored study, or leave study out"
        raise invalid("study", request.study, message) from None

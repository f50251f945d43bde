"""Routes of the demand for workers: the hardware that open studies need."""

from fastapi import APIRouter

from shardtune.api_schemas.machines.demand import Demand
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.process.context import ContextDep
from shardtune.service.studies import demand

router = APIRouter(prefix="/v1/demand", tags=["workers"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("")
def read_demand(context: ContextDep) -> Demand:
    """Read the hardware that open studies need, for an autoscaler: the waiting studies, how long they have waited, and
    the workers that have this hardware.
    """
    return demand.read(context)

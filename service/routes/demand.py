"""What is needed of workers, over HTTP."""

from fastapi import APIRouter

from shardtune.api_schemas.machines.demand import Demand
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.process.context import InContext
from shardtune.service.studies import demand

router = APIRouter(prefix="/v1/demand", tags=["workers"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("")
def read_demand(context: InContext) -> Demand:
    """What the open studies need of workers, for an autoscaler: the hardware, who waits for it since when, and who has it."""
    return demand.read(context)

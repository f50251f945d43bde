"""Routes of the demand for workers: the hardware that open studies need."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.machines.demand import Demand
from shardtune.api_schemas.names import OwnName
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.errors import invalid, invalid_from_value_error
from shardtune.service.process.context import ContextDep
from shardtune.service.studies import demand
from shardtune.tuner.prediction import catalogue

router = APIRouter(prefix="/v1/demand", tags=["workers"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("")
def read_demand(
    context: ContextDep,
    cluster: Annotated[
        str | None,
        Query(
            max_length=100,
            description="Only studies for workers with this cluster, in its short form.",
            examples=["8xh100"],
        ),
    ] = None,
    allow_model: Annotated[
        list[OwnName] | None, Query(description="Model entry points that a worker with `cluster` allows.")
    ] = None,
    allow_script: Annotated[
        list[OwnName] | None, Query(description="Training scripts that a worker with `cluster` allows.")
    ] = None,
) -> Demand:
    """Read the hardware that open studies need, for an autoscaler: the waiting studies, how long they have waited, and
    the workers that have this hardware. With a cluster, read the demand for one pool of workers. This leaves out
    studies of models that the pool's workers do not allow, and studies that one more worker would not help: their
    measurements are not comparable with a live worker's (`waits_for_worker`), or their GPU-seconds of the day are used
    up. The pool's workers are expected to have the packages of adapters, 8-bit AdamW and float8, as the worker's image
    has.
    """
    if cluster is None:
        if allow_model or allow_script:
            raise invalid("cluster", None, "cluster is missing: allow_model and allow_script need it, such as 8xh100")
        return demand.read(context)
    try:
        pool = catalogue.parse_cluster(cluster)
    except ValueError as error:
        raise invalid_from_value_error("cluster", error) from None
    return demand.read(context, demand.PoolOffer(pool, frozenset(allow_model or ()), frozenset(allow_script or ())))

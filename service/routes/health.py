"""Routes for liveness, readiness and metrics of the service."""

import logging

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from sqlalchemy.exc import SQLAlchemyError

from shardtune.db.queries import gauges
from shardtune.db.revisions import revision_problem
from shardtune.service.access import costs
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_answers import problem
from shardtune.service.http.error_codes import problems
from shardtune.service.http.errors import Forbidden
from shardtune.service.process import clock
from shardtune.service.process.context import ContextDep, OpenContextDep
from shardtune.service.workers.registry import live_since

log = logging.getLogger(__name__)

# The previous month, too, so that its final figures are scraped at least once.
_MONTHS = 2
"""Number of months whose costs are exported as metrics."""

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Report that the service process answers (liveness)."""
    # Async, so that it needs no thread: requests that wait for the database may have taken all of them.
    return {"status": "ok"}


@router.get("/readyz", response_model=None, responses=problems("database_unreachable", "database_not_migrated"))
def ready(context: OpenContextDep) -> JSONResponse | dict[str, str]:
    """Report whether the database is reachable and migrated; the field `clock` warns if this machine's clock differs
    from the database's.
    """
    try:
        with context.db.read_connection() as connection:
            revision_error = revision_problem(connection)
    except SQLAlchemyError:
        log.exception("database unreachable")
        return problem(503, "database_unreachable", "the database cannot be reached; see the service's log")
    if revision_error is not None:
        return problem(503, "database_not_migrated", revision_error)
    clock_warning = clock.clock_warning(context)
    return {"status": "ready"} | ({"clock": clock_warning} if clock_warning is not None else {})


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[requires(Action.READ_METRICS)])
def metrics(context: ContextDep) -> Response:
    """Read metrics for Prometheus; they cover all projects, so the key must see all of them."""
    if context.principal.project_id is not None:
        raise Forbidden("scope_missing", "metrics are over all projects; use a key that is bound to none")
    with context.db.read() as session:
        gauge_values = gauges.read(session, live_since(context))
    spent = costs.report(context, months=_MONTHS)
    page = context.metrics.render(
        context.now(), gauge_values, spent, context.work_signal.waiting_requests, context.stream_limits.total
    )
    return Response(page, media_type=CONTENT_TYPE_PLAIN_0_0_4)

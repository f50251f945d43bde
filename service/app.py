"""FastAPI application of the service: assembles its parts, and starts and stops the background loops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module

from fastapi import FastAPI
from opentelemetry.trace import TracerProvider
from starlette.concurrency import run_in_threadpool

from shardtune import __version__
from shardtune.db.preparation import prepare_database
from shardtune.service import pages, retention
from shardtune.service.access import actions, auth
from shardtune.service.best import watch_staleness
from shardtune.service.canaries import judge
from shardtune.service.http import (
    error_answers,
    fair_queue_middleware,
    idempotent_requests,
    memory_budget,
    openapi,
    pre_body_auth,
)
from shardtune.service.http.error_codes import Problem
from shardtune.service.http.input_guard import INPUT_GUARD
from shardtune.service.leasing import long_poll, reclaim, without_worker
from shardtune.service.observability.telemetry import SPAN_ATTRIBUTES, telemetry_config
from shardtune.service.process import clock
from shardtune.service.process.context import Context
from shardtune.service.recommendations import record
from shardtune.service.routes import (
    best,
    canaries,
    comparisons,
    costs,
    demand,
    diagnoses,
    fingerprints,
    health,
    keys,
    leases,
    plans,
    predictions,
    retunes,
    schedules,
    studies,
    webhooks,
    workers,
)
from shardtune.service.routes import events as event_routes
from shardtune.service.schedules import retuning_loop
from shardtune.service.settings import Settings
from shardtune.service.studies import event_stream, wait_for_worker
from shardtune.service.webhooks import deliveries

_LOOPS = (
    clock.keep_reading,
    reclaim.keep_sweeping,
    without_worker.keep_completing,
    wait_for_worker.keep_beginning,
    event_stream.keep_polling,
    long_poll.keep_looking,
    deliveries.keep_delivering,
    retention.keep_forgetting,
    watch_staleness.keep_watching,
    judge.keep_watching,
    retuning_loop.keep_retuning,
)
"""Background loops of the service, which run from its start to its end."""
_ROUTES = (
    studies,
    best,
    schedules,
    retunes,
    costs,
    comparisons,
    fingerprints,
    canaries,
    event_routes,
    predictions,
    plans,
    workers,
    demand,
    diagnoses,
    leases,
    keys,
    webhooks,
    health,
)


def create_app(
    settings: Settings | None = None,
    context: Context | None = None,
    migrate: bool = True,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """Create the FastAPI application of the service. For tests, `context` replaces the database and the clock, and
    `tracer_provider` replaces the export of spans. With `migrate` False, the database is not migrated at startup,
    even if it is SQLite.
    """
    settings = settings or (context.settings if context else Settings())
    context = context or Context.opened(settings)
    app = FastAPI(
        title="Shardtune",
        version=__version__,
        summary="Finds the fastest measured training configuration for a model on a cluster.",
        lifespan=_lifespan(migrate),
        responses={500: {"model": Problem}},
        dependencies=[INPUT_GUARD, SPAN_ATTRIBUTES] if settings.telemetry else [INPUT_GUARD],
        # The service serves the document and a page for it by itself: FastAPI's page loads its scripts from a CDN.
        openapi_url=None,
        telemetry={**telemetry_config(settings), "tracer_provider": tracer_provider},
    )
    app.state.context = context
    error_answers.install(app)
    idempotent_requests.install(app)
    openapi.install(app, actions.scopes_of)
    for route_module in _ROUTES:
        app.include_router(route_module.router)
    # Imported only where it is on: the protocol's package is an extra.
    mcp = import_module("shardtune.service.mcp.mount") if settings.mcp else None
    app.state.mcp = mcp
    mcp_entries = (mcp.install(app),) if mcp is not None else ()
    pages.install(app)
    # Order matters: each middleware wraps those before it. The queue is inside, so that senders without a valid key are
    # rejected without taking a slot.
    memory_budget.install(app)
    fair_queue_middleware.install(app)
    pre_body_auth.install(
        app,
        pre_body_auth.AuthPrefix(pre_body_auth.API, auth.authenticate_before_body),
        *mcp_entries,
        *pages.ENTRIES,
    )
    return app


def _lifespan(migrate: bool) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Start the background loops with the context that the application has now, and stop them when the application
    ends.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        context: Context = app.state.context
        await run_in_threadpool(prepare_database, context.db, context.settings.database_url, migrate)
        # Before the first request: every stored time is the database's.
        await run_in_threadpool(context.db.clock.read)
        await run_in_threadpool(record.record_earlier_results, context)
        tasks = [asyncio.create_task(loop(context)) for loop in _LOOPS]
        try:
            async with AsyncExitStack() as stack:
                if app.state.mcp is not None:
                    await stack.enter_async_context(app.state.mcp.running(app))
                yield
        finally:
            # All are cancelled before any is awaited, so that one slow end does not delay the others.
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            context.db.close()

    return lifespan

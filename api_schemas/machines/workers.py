"""Schemas of workers as people read them over the REST API."""

from datetime import datetime

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Inventory


class Worker(Schema):
    """Worker as shown to users: its machine, state and current run."""

    worker_id: str
    name: str
    inventory: Inventory
    registered_at: datetime
    """Time at which the worker's current session began; a change means that the worker was restarted."""
    seen_at: datetime
    """Time of the last request in the worker's session."""
    project_id: str | None = None
    """Project to whose studies the worker is limited; None: all projects."""
    is_live: bool
    """Whether the worker sent a request recently; only live workers are used for new studies."""
    is_draining: bool = False
    """Whether the worker gets no more runs; its current run may finish."""
    set_aside: str | None = None
    """Reason why the service itself drains the worker, such as leases that the worker cannot read. It gets runs again
    when it restarts, or when a person resumes it."""
    run_id: str | None = None
    """Id of the run that the worker executes, if the run belongs to one of the caller's projects."""
    condition: str | None = None
    """Problem of the worker found by canaries (speed checks): slower than before while other workers are not."""


class WorkerPage(Schema):
    """Page of workers, sorted by name."""

    workers: tuple[Worker, ...]
    next_page_token: str | None = None

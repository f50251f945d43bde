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
    """Time at which the worker's current session began. A later time than before means that the worker was
    restarted."""
    seen_at: datetime
    """Time at which the worker's session last sent a request."""
    project_id: str | None = None
    """Project whose studies alone the worker runs; if None, it runs the studies of all projects."""
    is_live: bool
    """Whether the worker is live, which means that it sent a request recently. New studies wait for, or run on, live
    workers only."""
    is_draining: bool = False
    """Whether the worker is being drained: it gets no more runs, and may finish its current one."""
    set_aside: str | None = None
    """Reason why the service itself drains the worker (gives it no more runs), such as leases that the worker cannot
    read. None if the service does not. The worker gets runs again when it restarts, or when a person resumes it."""
    run_id: str | None = None
    """Id of the run that the worker executes. It is shown only if the run belongs to one of the caller's projects;
    otherwise None."""
    condition: str | None = None
    """Problem that canaries (speed checks) found with the worker: it is slower than before, while other workers are
    not. None if there is no problem."""


class WorkerPage(Schema):
    """Page of workers, sorted by name."""

    workers: tuple[Worker, ...]
    next_page_token: str | None = None

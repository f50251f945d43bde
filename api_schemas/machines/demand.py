"""Demand of studies that wait for a worker, for a program that starts machines."""

from datetime import datetime

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.names import OwnName


class Need(Schema):
    """Studies with the same requirements for a worker."""

    cluster: Cluster
    """Cluster that each of their trials runs on; a larger one of the same kind will do."""
    entry_point: OwnName | None = None
    """Entry point that the worker's owner has to allow; None: none."""
    script: OwnName | None = None
    """Training script that the worker's owner has to allow; None: none."""
    waiting: tuple[str, ...]
    """Ids of studies without a worker, longest wait first."""
    running: int
    """Number of studies that have started; while there are any, their workers have work."""
    live_workers: int
    """Number of live workers that could run the studies and take work."""
    waiting_since: datetime | None = None
    """Creation time of the oldest waiting study; None: none waits."""
    until: datetime | None = None
    """Time at which the first waiting study gives up; None: none waits."""


class Demand(Schema):
    """Requirements of the open studies, most waiting studies first."""

    needs: tuple[Need, ...]

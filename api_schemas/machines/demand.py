"""What studies need that wait for a worker, for whoever starts machines."""

from datetime import datetime

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.names import OwnName


class Need(Schema):
    """Studies that need the same of a worker."""

    cluster: Cluster
    """What each of their trials runs on; more of the same will do."""
    entry_point: OwnName | None = None
    """The entry point that the worker's owner has to allow; None: none."""
    script: OwnName | None = None
    """The training script that the worker's owner has to allow; None: none."""
    waiting: tuple[str, ...]
    """Ids of studies for which no worker is there, the one that waits longest first."""
    running: int
    """Studies that have begun: while there are any, their workers have work."""
    live_workers: int
    """That could run them and take work."""
    waiting_since: datetime | None = None
    """When the oldest of them was created; None: none waits."""
    until: datetime | None = None
    """When the first of them gives up; None: none waits."""


class Demand(Schema):
    """What the open studies need, most waiting first."""

    needs: tuple[Need, ...]

"""Schemas of the demand for workers by waiting studies, for use by an autoscaler."""

from datetime import datetime

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.names import OwnName


class Need(Schema):
    """Group of unfinished studies that have the same requirements for a worker."""

    cluster: Cluster
    """Cluster on which each trial of the group's studies runs. A worker with a larger cluster of the same kind is also
    suitable."""
    entry_point: OwnName | None = None
    """Name of the model entry point that a worker's owner must allow for the group's studies; None if they need
    none."""
    script: OwnName | None = None
    """Name of the training script that a worker's owner must allow for the group's studies; None if they need none."""
    waiting: tuple[str, ...]
    """Ids of the group's studies that wait for a worker, the one with the longest wait first."""
    running: int
    """Number of the group's studies that have started. If it is above 0, there may be runs for workers to execute."""
    live_workers: int
    """Number of live workers that accept work and could run at least one of the group's studies."""
    waiting_since: datetime | None = None
    """Time at which the oldest waiting study was created; None if no study waits."""
    until: datetime | None = None
    """Time at which the first of the waiting studies fails if no worker has come; None if no study waits."""


class Demand(Schema):
    """Requirements for workers of all unfinished studies, in groups. Groups with the most waiting studies come first."""

    needs: tuple[Need, ...]
    studies: int = 0
    """Number of unfinished studies, waiting or running. An autoscaler that reads a single number can use it as the
    number of workers, one for each study."""
    without_worker: int = 0
    """Number of unfinished studies that no live worker could run, because of the study's hardware, model, adapter,
    optimizer or float8."""

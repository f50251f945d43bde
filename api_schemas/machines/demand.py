"""Schemas of the demand for workers by waiting studies, for use by an autoscaler."""

from datetime import datetime

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.names import OwnName


class Need(Schema):
    """Group of studies with the same requirements for a worker."""

    cluster: Cluster
    """Cluster that each trial of the group's studies runs on; a larger cluster of the same kind is also suitable."""
    entry_point: OwnName | None = None
    """Name of the model entry point that the worker's owner must allow; None if the studies need none."""
    script: OwnName | None = None
    """Name of the training script that the worker's owner must allow; None if the studies need none."""
    waiting: tuple[str, ...]
    """Ids of the studies that wait for a worker, longest wait first."""
    running: int
    """Number of the group's studies that have started; above 0, workers have runs to execute."""
    live_workers: int
    """Number of live workers that accept work and could run at least one of the group's studies."""
    waiting_since: datetime | None = None
    """Creation time of the oldest waiting study; None if no study waits."""
    until: datetime | None = None
    """Time at which the first waiting study fails for lack of a worker; None if no study waits."""


class Demand(Schema):
    """Worker requirements of all unfinished studies, those with the most waiting studies first."""

    needs: tuple[Need, ...]
    studies: int = 0
    """Number of unfinished studies, waiting or running. An autoscaler, which reads one number, can take it as the size
    of a pool with one worker for each study."""
    without_worker: int = 0
    """Number of unfinished studies that no live worker could run, judged by each study's hardware, model, adapter,
    optimizer and float8."""

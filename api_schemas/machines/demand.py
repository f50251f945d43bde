"""Schemas of the demand for workers by waiting studies, for use by an autoscaler."""

from datetime import datetime

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.names import OwnName


class Need(Schema):
    """Group of studies with the same requirements for a worker."""

    cluster: Cluster
    """Cluster that each trial of these studies runs on; a larger cluster of the same kind is also suitable."""
    entry_point: OwnName | None = None
    """Name of the model entry point that the worker's owner must allow; None if the studies need none."""
    script: OwnName | None = None
    """Name of the training script that the worker's owner must allow; None if the studies need none."""
    waiting: tuple[str, ...]
    """Ids of the studies that wait for a worker, longest wait first."""
    running: int
    """Number of these studies that have started; above 0, their workers have work."""
    live_workers: int
    """Number of live workers that could run at least one of these studies and accept work."""
    waiting_since: datetime | None = None
    """Creation time of the oldest waiting study; None if no study waits."""
    until: datetime | None = None
    """Time at which the first waiting study fails for lack of a worker; None if no study waits."""


class Demand(Schema):
    """Worker requirements of all unfinished studies, those with the most waiting studies first."""

    needs: tuple[Need, ...]
    studies: int = 0
    """Number of these studies, waiting or running: the workers of a pool with one worker for each study. For
    autoscalers, which read one number."""
    without_worker: int = 0
    """Number of these studies that no live worker could run, counted for each study: its hardware, model, adapter,
    optimizer and float8."""

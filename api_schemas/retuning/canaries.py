"""Canaries: runs that check whether a recommended configuration is as fast as it was measured."""

from datetime import datetime
from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CanaryRole(StrEnum):
    """Task of a canary."""

    WATCH = "watch"
    PEER = "peer"
    """Run on another worker, to tell a slow worker from a slow configuration."""


class CanaryVerdict(StrEnum):
    """Verdict of a canary."""

    NORMAL = "normal"
    SLOW = "slow"
    """Slow; a peer is run before the verdict is final."""
    DRIFT = "drift"
    """Slow on every worker that was tried."""
    WORKER = "worker"
    """Slow on this worker alone: the peer is as fast as ever."""
    UNMEASURED = "unmeasured"


class Canary(Schema):
    """Run of the recommended configuration on one worker."""

    canary_id: str
    project_id: str
    target_key: str
    recommendation_id: str
    study_id: str
    """Study with the runs of the canary."""
    worker: str
    role: CanaryRole
    verdict: CanaryVerdict | None = None
    """Verdict; None while it runs."""
    tokens_per_s_per_gpu: float | None = None
    """Speed of its fastest run."""
    change: float | None = None
    """Ratio of its speed to the median of the earlier runs; None for too few of them."""
    reason: str | None = None
    created_at: datetime
    ended_at: datetime | None = None


class CanaryPage(Schema):
    """Canaries, newest first."""

    canaries: tuple[Canary, ...]
    next_page_token: str | None = None

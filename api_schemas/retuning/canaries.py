"""Canaries: looks at whether what is served is as fast as it was measured."""

from datetime import datetime
from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CanaryRole(StrEnum):
    """What a canary is sent for."""

    WATCH = "watch"
    PEER = "peer"
    """On another worker, to tell a slow worker from a slow case."""


class CanaryVerdict(StrEnum):
    """What a canary found."""

    NORMAL = "normal"
    SLOW = "slow"
    """Not the last word: a peer is asked."""
    DRIFT = "drift"
    """Slow everywhere it could be tried."""
    WORKER = "worker"
    """Slow there alone: the peer is as fast as ever."""
    UNMEASURED = "unmeasured"


class Canary(Schema):
    """One look at one worker."""

    canary_id: str
    project_id: str
    target_key: str
    recommendation_id: str
    study_id: str
    """Its runs."""
    worker: str
    role: CanaryRole
    verdict: CanaryVerdict | None = None
    """None while it runs."""
    tokens_per_s_per_gpu: float | None = None
    """Of its fastest run."""
    change: float | None = None
    """That over the median of the runs it is held against; None for too few of them."""
    reason: str | None = None
    created_at: datetime
    ended_at: datetime | None = None


class CanaryPage(Schema):
    """Canaries, newest first."""

    canaries: tuple[Canary, ...]
    next_page_token: str | None = None

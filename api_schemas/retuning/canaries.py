"""Schemas of canaries: periodic runs that check whether a recommended configuration is still as fast as when it was
measured."""

from datetime import datetime
from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CanaryRole(StrEnum):
    """Role of a run in a canary (speed check of a recommended configuration)."""

    WATCH = "watch"
    PEER = "peer"
    """Run of the same configuration on another worker, to distinguish a slow worker from a slow configuration."""


class CanaryVerdict(StrEnum):
    """Verdict of a canary (speed check of a recommended configuration)."""

    NORMAL = "normal"
    SLOW = "slow"
    """The configuration was slower than normal. A second canary (speed check) on another worker must run before the
    verdict is final."""
    DRIFT = "drift"
    """The configuration was slower than normal on every worker on which it was tried."""
    WORKER = "worker"
    """The configuration was slower than normal on this worker only; on another worker its speed had not changed."""
    UNMEASURED = "unmeasured"


class Canary(Schema):
    """Canary: a check of the speed of a recommended configuration, by running it on one worker."""

    canary_id: str
    project_id: str
    target_key: str
    recommendation_id: str
    study_id: str
    """Id of the study that contains the runs of the canary (speed check)."""
    worker: str
    role: CanaryRole
    verdict: CanaryVerdict | None = None
    """Verdict of the canary (speed check); None while it runs."""
    tokens_per_s_per_gpu: float | None = None
    """Speed of the fastest run of the canary (speed check), in tokens per second and GPU."""
    change: float | None = None
    """Speed of this canary (speed check) divided by the median speed of earlier canaries; None if there are too few of
    them."""
    reason: str | None = None
    created_at: datetime
    ended_at: datetime | None = None


class CanaryPage(Schema):
    """Page of canaries (speed checks of recommended configurations), newest first."""

    canaries: tuple[Canary, ...]
    next_page_token: str | None = None

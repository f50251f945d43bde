"""Canaries: looks at whether what is served is as fast as it was measured."""

from datetime import datetime
from typing import Literal

from shardtune.api_schemas.base import Schema


class Canary(Schema):
    """One look at one worker."""

    canary_id: str
    project_id: str
    case_key: str
    recommendation_id: str
    study_id: str
    """Its runs."""
    worker: str
    role: Literal["watch", "peer"]
    """`peer`: on another worker, to tell a slow worker from a slow case."""
    verdict: Literal["normal", "slow", "drift", "worker", "unmeasured"] | None = None
    """None while it runs. `slow`: a peer is asked. `worker`: slow there alone. `drift`: slow everywhere it could be tried."""
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

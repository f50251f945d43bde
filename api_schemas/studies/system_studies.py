"""Schemas of studies started by the service itself: to compare a recommendation with challengers, to search anew, or to
check for slowdowns."""

from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class SystemStudyKind(StrEnum):
    """Kind of a study that the service started itself, to check or renew a recommendation."""

    CHALLENGE = "challenge"
    """Compare the recommended configuration, as the study's baseline, with a few configurations that may be faster
    (challengers), in a small number of pairs of runs."""
    SEARCH = "search"
    """Search for a new configuration, starting with the known ones."""
    CANARY = "canary"
    """Run the recommended configuration alone, on one worker, to check its speed."""


class SystemStudy(Schema):
    """Purpose and settings of a study that the service started itself."""

    kind: SystemStudyKind
    retune_id: str | None = Field(default=None, max_length=40)
    """Id of the retune (repeated measurement of a recommendation) to which a challenge or a search belongs."""
    challengers: tuple[TrialConfig, ...] = ()
    """Configurations to compare. A challenge runs no others; a search runs them directly after its baseline, before new
    ones."""
    warm_study_id: str | None = Field(default=None, max_length=32)
    """Id of an earlier study whose trials guide the sampler of a search. Most were measured on another fingerprint
    (hardware and software), so their speeds are never compared with those of the search."""
    worker_id: str | None = Field(default=None, max_length=32)
    """Id of the only worker that may run the study. If None, any worker with the study's fingerprint (hardware and
    software) may."""
    repeat_below: float | None = Field(default=None, gt=0)
    """Lower limit of the normal speed, in tokens per second and GPU, for a canary (speed check). If all its runs were
    slower, the canary runs once more. If None, no normal range is known yet, and each of the `most_runs` runs becomes
    part of it."""
    most_runs: int = Field(default=1, ge=1)
    """Maximum number of runs of a canary (speed check of a recommended configuration)."""

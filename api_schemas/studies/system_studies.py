"""Studies of the service itself: challenge a best configuration, search anew, or look for drift."""

from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class SystemStudyKind(StrEnum):
    """Kind of a study that the service started."""

    CHALLENGE = "challenge"
    """Compare the incumbent (the study's baseline) with few challengers, in a handful of pairs."""
    SEARCH = "search"
    """Search, beginning with the known configurations."""
    CANARY = "canary"
    """Run the incumbent alone, on one worker."""


class SystemStudy(Schema):
    """Task of a study that no user asked for."""

    kind: SystemStudyKind
    retune_id: str | None = Field(default=None, max_length=40)
    """Retune that a challenge or search belongs to."""
    challengers: tuple[TrialConfig, ...] = ()
    """Configurations to compare: a challenge runs these and nothing else; a search runs them right after its
    baseline."""
    warm_study_id: str | None = Field(default=None, max_length=32)
    """Study whose trials guide a search's sampler. They were measured earlier, mostly on another fingerprint: their
    figures are never compared with those of the search."""
    worker_id: str | None = Field(default=None, max_length=32)
    """Only worker that may run it; None: any worker of the fingerprint."""
    repeat_below: float | None = Field(default=None, gt=0)
    """Speed in tokens_per_s_per_gpu: a canary whose runs were all slower runs once more. None: too little is known
    to tell; each of its `most_runs` runs becomes part of the normal range."""
    most_runs: int = Field(default=1, ge=1)
    """Most runs of a canary."""

"""What the service asks of a study of its own: challenge a best configuration, search anew, or look for drift."""

from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class SystemStudyKind(StrEnum):
    """What the service wants of a study of its own."""

    CHALLENGE = "challenge"
    """The incumbent (the study's baseline) against few challengers, in a handful of pairs."""
    SEARCH = "search"
    """A search that begins with what is known."""
    CANARY = "canary"
    """The incumbent alone, on one worker."""


class SystemStudy(Schema):
    """Why a study exists that no user asked for, and what it runs."""

    kind: SystemStudyKind
    retune_id: str | None = Field(default=None, max_length=40)
    """Of a challenge or search: the retune it serves."""
    challengers: tuple[TrialConfig, ...] = ()
    """A challenge runs these and nothing else; a search runs them right after its baseline."""
    warm_study_id: str | None = Field(default=None, max_length=32)
    """The trials of this study guide a search's sampler. They were measured earlier, mostly on another fingerprint:
    their figures are never compared with those of the search."""
    worker_id: str | None = Field(default=None, max_length=32)
    """The only worker that may run it; None: any of the fingerprint."""
    repeat_below: float | None = Field(default=None, gt=0)
    """tokens_per_s_per_gpu: a canary whose runs were all slower runs once more. None: too little is known to tell; each of
    its `most_runs` runs becomes part of what is normal."""
    most_runs: int = Field(default=1, ge=1)
    """Of a canary."""

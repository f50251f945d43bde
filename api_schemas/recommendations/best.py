"""Best configurations as a platform asks for them, and the recommendations and decisions behind them."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.studies.study import Contender, Speedup, Study, StudyRequest, StudyResult, Verdict
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload


class RecommendationState(StrEnum):
    """`proposed → serving → retired`, or `proposed → rejected | retired`; a retired one may serve again."""

    PROPOSED = "proposed"
    SERVING = "serving"
    RETIRED = "retired"
    REJECTED = "rejected"


class Renewed(Schema):
    """What was shown of a configuration when it was first recommended, on an earlier fingerprint or at another time."""

    recommendation_id: str
    study_id: str
    verdict: Verdict
    speedup: Speedup | None


class Answer(Schema):
    """What a finished study recommends, and for what."""

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    fingerprint: Fingerprint
    result: StudyResult
    renewed: Renewed | None = None
    """Where a retune measured again what was recommended before: `result` is the retune's, this is what it goes back to."""


class Recommendation(Schema):
    """The answer of one study, and whether it is served."""

    recommendation_id: str
    project_id: str
    target_key: str
    study_id: str
    state: RecommendationState
    answer: Answer
    created_at: datetime


class RecommendationPage(Schema):
    """Recommendations, newest first."""

    recommendations: tuple[Recommendation, ...]
    next_page_token: str | None = None


class DecisionAction(StrEnum):
    """What was decided, by a person or by the service."""

    PROPOSED = "proposed"
    SERVED = "served"
    KEPT = "kept"
    """A new study's answer was not faster than the one that is served."""
    APPROVED = "approved"
    REJECTED = "rejected"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    ROLLED_BACK = "rolled_back"
    STALE = "stale"
    """The machines have changed, in the fields that the note names."""
    FRESH = "fresh"
    """They have changed back."""
    WITHDRAWN = "withdrawn"
    """Its study was deleted with it."""
    RENEWED = "renewed"
    """A retune measured the configuration again, and it stays."""
    SUPERSEDED = "superseded"
    """It goes on under the key in the note."""
    INCONCLUSIVE = "inconclusive"
    """A retune left it as it was."""
    REGRESSION = "regression"
    """A canary found it slower than it was measured."""


class ConfidenceLevel(StrEnum):
    """How far to trust an answer."""

    HIGH = "high"
    """Measured for exactly this, confirmed, fresh."""
    MEDIUM = "medium"
    LOW = "low"
    """Another model, cluster or software, or stale."""


class Decision(Schema):
    """One thing that was decided about a best configuration, by a person or by the service."""

    at: datetime
    action: DecisionAction
    recommendation_id: str
    by: str
    """Name of the key; `service` for what follows from a study's end."""
    note: str | None = None


class DecisionPage(Schema):
    """Decisions, newest first."""

    decisions: tuple[Decision, ...]
    next_page_token: str | None = None


class UserDecision(StrEnum):
    """What a person can ask for: the last word of `POST /v1/best:pin`."""

    PIN = "pin"
    UNPIN = "unpin"
    APPROVE = "approve"
    REJECT = "reject"
    ROLLBACK = "rollback"


class DecisionRequest(Schema):
    """What a person decides."""

    target_key: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$")
    """Of the case; here or in the query."""
    recommendation_id: str | None = Field(default=None, max_length=40)
    """Default: pin what is served, approve or reject the newest proposal."""
    note: str | None = Field(default=None, max_length=1000)


class Difference(Schema):
    """A field in which the nearest known answer is another case than the one asked for."""

    field: str
    wanted: JsonValue
    found: JsonValue


class Confidence(Schema):
    """How far to trust the answer; every reason that lowers it is named."""

    level: ConfidenceLevel
    reasons: tuple[str, ...] = ()


class BestConfig(Schema):
    """The configuration to train with."""

    target_key: str
    asked_key: str | None = None
    """The target_key that was asked for, where the case has been measured on another fingerprint since: the answer is
    that of `target_key`."""
    match: Literal["exact", "nearest"]
    differences: tuple[Difference, ...] = ()
    """Empty for an exact match."""
    freshness: Freshness
    changed_fields: tuple[str, ...] = ()
    """Of the fingerprint: where stale, those that make it so; where fresh, those that lower the confidence."""
    is_pinned: bool
    confidence: Confidence
    measured_at: datetime
    age_s: float
    """Seconds since then. Not part of the ETag."""
    recommendation_id: str
    study_id: str
    description: str
    """The strategy in words."""
    verdict: Verdict
    speedup: Speedup | None
    renewed: Renewed | None = None
    """Where a retune confirmed that the configuration still stands: what had been shown of it before."""
    best: Contender
    baseline: Contender
    model: ModelSpec
    workload: Workload
    cluster: Cluster
    fingerprint: Fingerprint


class ResolveRequest(Schema):
    """Ask for the best configuration of a study's case, and start the study where nothing is known."""

    study: StudyRequest
    accept_nearest: bool = False
    """Take the nearest known answer rather than start a study."""
    lowest_confidence: ConfidenceLevel = ConfidenceLevel.MEDIUM
    """Of the nearest answer: `medium` differs in the workload only; `low` in model, cluster or software, too, and is to be asked for."""


class Resolved(Schema):
    """Exactly one: what is known, or the study that will know."""

    best: BestConfig | None = None
    study: Study | None = None

"""Best configurations as a platform asks for them, with their recommendations and decisions."""

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
    """State of a recommendation: `proposed → serving → retired`, or `proposed → rejected | retired`; a retired one
    may serve again."""

    PROPOSED = "proposed"
    SERVING = "serving"
    RETIRED = "retired"
    REJECTED = "rejected"


class EarlierVerdict(Schema):
    """Verdict on a configuration when it was first recommended, on an earlier fingerprint or at another time."""

    recommendation_id: str
    study_id: str
    verdict: Verdict
    speedup: Speedup | None


class Answer(Schema):
    """Recommendation of a finished study, with the model, workload and cluster that it is for."""

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    fingerprint: Fingerprint
    result: StudyResult
    renewed: EarlierVerdict | None = None
    """Earlier verdict, where a retune measured the configuration again: `result` is then the retune's."""


class Recommendation(Schema):
    """Answer of one study, and whether it is recommended now."""

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
    """Decision of a person or of the service."""

    PROPOSED = "proposed"
    SERVED = "served"
    KEPT = "kept"
    """The answer of a new study was not faster than the recommended one."""
    APPROVED = "approved"
    REJECTED = "rejected"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    ROLLED_BACK = "rolled_back"
    STALE = "stale"
    """The machines have changed, in the fields that the note names."""
    FRESH = "fresh"
    """The machines have changed back."""
    WITHDRAWN = "withdrawn"
    """The study of the recommendation was deleted."""
    RENEWED = "renewed"
    """A retune measured the configuration again, and it stays."""
    SUPERSEDED = "superseded"
    """The recommendation goes on under the key in the note."""
    INCONCLUSIVE = "inconclusive"
    """A retune left the recommendation as it was."""
    REGRESSION = "regression"
    """A canary found the configuration slower than it was measured."""


class ConfidenceLevel(StrEnum):
    """Level of confidence in an answer."""

    HIGH = "high"
    """Measured for exactly this tuning target, confirmed, fresh."""
    MEDIUM = "medium"
    LOW = "low"
    """Measured for another model, cluster or software, or stale."""


class Decision(Schema):
    """Decision about a best configuration, by a person or by the service."""

    at: datetime
    action: DecisionAction
    recommendation_id: str
    by: str
    """Name of the key; `service` for decisions that follow from the end of a study."""
    note: str | None = None


class DecisionPage(Schema):
    """Decisions, newest first."""

    decisions: tuple[Decision, ...]
    next_page_token: str | None = None


class UserDecision(StrEnum):
    """Decision that a person can make: the last word of `POST /v1/best:pin`."""

    PIN = "pin"
    UNPIN = "unpin"
    APPROVE = "approve"
    REJECT = "reject"
    ROLLBACK = "rollback"


class DecisionRequest(Schema):
    """Request of a person to decide."""

    target_key: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$")
    """Key of the tuning target; here or in the query."""
    recommendation_id: str | None = Field(default=None, max_length=40)
    """Recommendation that is decided on. Default: pin the recommended one, approve or reject the newest proposal."""
    note: str | None = Field(default=None, max_length=1000)


class Difference(Schema):
    """Field in which the nearest known answer differs from the tuning target that was asked for."""

    field: str
    wanted: JsonValue
    found: JsonValue


class Confidence(Schema):
    """Confidence in the answer; every reason that lowers it is named."""

    level: ConfidenceLevel
    reasons: tuple[str, ...] = ()


class BestConfig(Schema):
    """Configuration to train with."""

    target_key: str
    asked_key: str | None = None
    """Key that was asked for, where the tuning target has been measured on another fingerprint since: the answer is
    that of `target_key`."""
    match: Literal["exact", "nearest"]
    differences: tuple[Difference, ...] = ()
    """Differences from the tuning target that was asked for; empty for an exact match."""
    freshness: Freshness
    changed_fields: tuple[str, ...] = ()
    """Changed fields of the fingerprint: where stale, those that make it so; where fresh, those that lower the
    confidence."""
    is_pinned: bool
    confidence: Confidence
    measured_at: datetime
    age_s: float
    """Seconds since the measurement. Not part of the ETag."""
    recommendation_id: str
    study_id: str
    description: str
    """Strategy in words."""
    verdict: Verdict
    speedup: Speedup | None
    renewed: EarlierVerdict | None = None
    """Earlier verdict on the configuration, where a retune confirmed that it is still the best."""
    best: Contender
    baseline: Contender
    model: ModelSpec
    workload: Workload
    cluster: Cluster
    fingerprint: Fingerprint


class ResolveRequest(Schema):
    """Request for the best configuration of a study's tuning target. The study is started where no answer is known."""

    study: StudyRequest
    accept_nearest: bool = False
    """Whether to take the nearest known answer rather than start a study."""
    lowest_confidence: ConfidenceLevel = ConfidenceLevel.MEDIUM
    """Lowest confidence of a nearest answer: `medium` differs in the workload only; `low` in model, cluster or
    software, too, and must be asked for."""


class Resolved(Schema):
    """Exactly one of: the known best configuration, or the study that will find it."""

    best: BestConfig | None = None
    study: Study | None = None

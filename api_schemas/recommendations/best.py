"""Schemas of best configurations, returned to platforms that start training, with their recommendations and decisions."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import Contender, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload


class RecommendationState(StrEnum):
    """State of a recommendation: `proposed → recommended → retired`, or `proposed → rejected | retired`; a retired
    recommendation may become active again."""

    PROPOSED = "proposed"
    RECOMMENDED = "recommended"
    RETIRED = "retired"
    REJECTED = "rejected"


class EarlierVerdict(Schema):
    """Verdict of the study that first recommended the configuration. Retunes, which measure the configuration again
    later, do not change it."""

    recommendation_id: str
    study_id: str
    verdict: Verdict
    speedup: Speedup | None


class Answer(Schema):
    """Result of a finished study, with the model, workload and cluster that it applies to."""

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    fingerprint: Fingerprint
    result: StudyResult
    renewed: EarlierVerdict | None = None
    """Verdict of the study that found the configuration, if a retune (a later study) has measured the configuration
    again; `result` is then the retune's. If None, there was no such retune."""


class Recommendation(Schema):
    """Recommendation: the result of one study, and whether it is currently recommended."""

    recommendation_id: str
    project_id: str
    target_key: str
    study_id: str
    state: RecommendationState
    answer: Answer
    created_at: datetime


class RecommendationPage(Schema):
    """Page of recommendations, newest first."""

    recommendations: tuple[Recommendation, ...]
    next_page_token: str | None = None


class DecisionAction(StrEnum):
    """Kind of decision about a recommendation, made by a person or by the service."""

    PROPOSED = "proposed"
    RECOMMENDED = "recommended"
    KEPT = "kept"
    """The result of a new study was not faster than the current recommendation."""
    APPROVED = "approved"
    REJECTED = "rejected"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    ROLLED_BACK = "rolled_back"
    STALE = "stale"
    """Hardware or software changed in the fields that the note names, so the recommendation is stale."""
    FRESH = "fresh"
    """Hardware and software changed back to what they were at the measurement, so the recommendation is fresh again."""
    WITHDRAWN = "withdrawn"
    """The recommendation was withdrawn because its study was deleted, or because the study was extended and its new runs
    left no feasible configuration."""
    RENEWED = "renewed"
    """A retune measured the recommended configuration again and confirmed it."""
    SUPERSEDED = "superseded"
    """The recommendation is continued under another tuning target key (hash of model, workload, cluster and
    fingerprint), which the note names."""
    INCONCLUSIVE = "inconclusive"
    """A retune (repeated measurement) was inconclusive, or the new comparison of an extended study was, so the
    recommendation stays as it was."""
    REGRESSION = "regression"
    """A canary (speed check) found the configuration slower than when it was measured."""


class ConfidenceLevel(StrEnum):
    """Level of confidence in a best configuration."""

    HIGH = "high"
    """The configuration was measured for exactly this tuning target (model, workload and cluster), was confirmed by
    paired runs, and is fresh."""
    MEDIUM = "medium"
    LOW = "low"
    """The configuration was measured for another model, cluster or software, or it is stale."""


class Decision(Schema):
    """Decision about a best configuration, by a person or by the service."""

    at: datetime
    action: DecisionAction
    recommendation_id: str
    by: str
    """Name of the API key that made the decision; `service` for decisions that follow from the end of a study."""
    key_id: str | None = None
    """Id of the API key that made the decision, because keys may share a name; null for decisions of the service, or
    without keys."""
    note: str | None = None


class DecisionPage(Schema):
    """Page of decisions, newest first."""

    decisions: tuple[Decision, ...]
    next_page_token: str | None = None


class UserDecision(StrEnum):
    """Decision that a person can make, which is also the last part of the URL, such as `POST /v1/best:pin`."""

    PIN = "pin"
    UNPIN = "unpin"
    APPROVE = "approve"
    REJECT = "reject"
    ROLLBACK = "rollback"


class DecisionRequest(Schema):
    """Request of a person for a decision about a recommendation."""

    target_key: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$")
    """Key of the tuning target (a hash of model, workload and cluster). It may be given here or in the query of the
    URL."""
    recommendation_id: str | None = Field(default=None, max_length=40)
    """Id of the recommendation about which to decide. By default, `pin` takes the current recommendation; `approve` and
    `reject` take the newest proposal. `unpin` applies to the current recommendation only."""
    note: str | None = Field(default=None, max_length=1000)


class Difference(Schema):
    """Field in which the nearest known tuning target (model, workload and cluster) differs from the requested one."""

    field: str
    requested_value: JsonValue
    known_value: JsonValue


class Confidence(Schema):
    """Confidence in a best configuration, with every reason that lowers it."""

    level: ConfidenceLevel
    reasons: tuple[str, ...] = ()


class BestConfig(Schema):
    """Best known training configuration for a requested tuning target (model + workload + cluster)."""

    target_key: str
    asked_key: str | None = None
    """Key of the requested tuning target. It is given only if the target has since been measured on another fingerprint
    (hardware and software); `target_key` is then the key of that measurement."""
    match: Literal["exact", "nearest", "projected"]
    """Relation of the measured tuning target to the requested one. `projected`: nothing was measured on the requested
    target; a study on fewer GPUs was projected to it."""
    differences: tuple[Difference, ...] = ()
    """Fields in which the measured tuning target differs from the requested one; empty for an exact match."""
    freshness: Freshness
    changed_fields: tuple[str, ...] = ()
    """Fields of the fingerprint (hardware and software) that changed since the measurement. In a stale configuration
    they are the cause of that; in a fresh one they only lower the confidence."""
    is_pinned: bool
    confidence: Confidence
    measured_at: datetime
    age_s: float
    """Seconds since the configuration was measured. The ETag of the response does not depend on them."""
    recommendation_id: str
    study_id: str
    description: str
    """Short description of the configuration for people."""
    verdict: Verdict | Literal["projected"]
    """Verdict of the paired runs. `projected` means that no run took place on this target, so that the projected
    configuration is not confirmed."""
    projection: StudyProjection | None = None
    """Details of the answer if the verdict is `projected`: predicted speeds with their bands, the next best
    configurations, and other sizes of the cluster. `baseline` is then the baseline of the smaller cluster that was
    measured. None for other verdicts."""
    too_busy: BusyMachine | None = None
    """Details of the verdict `too_busy`: how many runs were disturbed, and by which programs. None for other
    verdicts."""
    speedup: Speedup | None
    renewed: EarlierVerdict | None = None
    """Verdict of the study that found the configuration, if a retune (a later study) confirmed that it is still the
    best."""
    best: Contender
    baseline: Contender
    model: ModelSpec
    workload: Workload
    cluster: Cluster
    fingerprint: Fingerprint


class ResolveRequest(Schema):
    """Request for the best configuration of a tuning target, which is described as in a study. If no configuration is
    known, the described study is started."""

    study: StudyRequest
    accept_nearest: bool = False
    """Whether to accept the nearest known configuration instead of starting a study."""
    lowest_confidence: ConfidenceLevel = ConfidenceLevel.MEDIUM
    """Lowest confidence that is accepted. With `medium`, the nearest configuration may differ only in the workload.
    With `low`, which must be requested explicitly, it may also differ in model, cluster or software, or come from a
    machine that was too busy."""


class Resolved(Schema):
    """Result of a resolve request: either the best known configuration, or the study that was started to find it."""

    best: BestConfig | None = None
    study: Study | None = None

"""Fingerprints as a user reads them: their holders over time, their changes and the recommendations that depend on
them."""

from datetime import datetime
from enum import StrEnum

from pydantic import JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Fingerprint


class Freshness(StrEnum):
    """Whether the machines are still those that a recommendation was measured on."""

    FRESH = "fresh"
    STALE = "stale"


class Effect(StrEnum):
    """Consequence of a difference between two fingerprints."""

    STALE = "stale"
    """Measurements on both cannot be compared, and recommendations must be renewed."""
    CONFIDENCE = "confidence"
    """Measurements on both can be compared, with lower confidence."""


class FieldChange(Schema):
    """Field in which two fingerprints differ in a way that counts."""

    field: str
    was: JsonValue
    now: JsonValue
    effect: Effect

    def describe(self) -> str:
        """Return the change in words."""
        return f"{self.field} {self.was} → {self.now}"


class FingerprintHolder(Schema):
    """Period in which a worker had a fingerprint."""

    worker_id: str
    worker: str
    """Name of the worker."""
    since: datetime
    until: datetime | None
    """End of the period; None: the worker has the fingerprint now, or had it when it was last heard of."""
    is_live: bool
    """Whether the worker has the fingerprint now and was heard of lately."""
    predecessor_id: str | None
    """Fingerprint that this worker had before."""
    changes: tuple[FieldChange, ...]
    """Changes against the predecessor. A value that was unknown before is no change."""


class FingerprintRecord(Schema):
    """One fingerprint, named by its content, and its holders."""

    fingerprint_id: str
    fingerprint: Fingerprint
    is_overridden: bool
    """Whether some fields were declared with `--fingerprint-override`, so that this is no real machine."""
    first_seen_at: datetime
    is_current: bool
    """Whether a worker has the fingerprint, live or not."""
    holders: tuple[FingerprintHolder, ...]
    """Periods of the workers that the sender may see, newest first."""


class FingerprintPage(Schema):
    """Fingerprints, the newest first."""

    fingerprints: tuple[FingerprintRecord, ...]
    next_page_token: str | None = None


class Dependent(Schema):
    """Recommendation in use that was measured under a fingerprint."""

    project_id: str
    target_key: str
    recommendation_id: str
    model: str
    freshness: Freshness
    changed_fields: tuple[str, ...]


class FingerprintDetail(FingerprintRecord):
    """One fingerprint with the recommendations that depend on it."""

    dependents: tuple[Dependent, ...]
    """Recommendations in use that were measured under it, at most 500, sorted by tuning target key."""

"""Fingerprints as a user reads them: which there were, who had them when, what changed and what depends on them."""

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
    """What a difference between two fingerprints does."""

    STALE = "stale"
    """Measurements on both do not compare, and recommendations must be renewed."""
    CONFIDENCE = "confidence"
    """They still compare, but are trusted less."""


class FieldChange(Schema):
    """A field in which two fingerprints differ in a way that counts."""

    field: str
    was: JsonValue
    now: JsonValue
    effect: Effect

    def describe(self) -> str:
        """In words."""
        return f"{self.field} {self.was} → {self.now}"


class FingerprintHolder(Schema):
    """A time in which a worker had a fingerprint."""

    worker_id: str
    worker: str
    """Name of the worker."""
    since: datetime
    until: datetime | None
    """None: it has it now, or had it when it was last heard of."""
    is_live: bool
    """It has it now, and was heard of lately."""
    predecessor_id: str | None
    """The fingerprint that this worker had before."""
    changes: tuple[FieldChange, ...]
    """Against the predecessor. What was unknown before is no change."""


class FingerprintRecord(Schema):
    """One fingerprint, named by its content, and who had it."""

    fingerprint_id: str
    fingerprint: Fingerprint
    is_overridden: bool
    """Some fields were declared with `--fingerprint-override`: this is no real machine."""
    first_seen_at: datetime
    is_current: bool
    """A worker has it, whether it is live or not."""
    holders: tuple[FingerprintHolder, ...]
    """The newest first; of the workers that the sender may see."""


class FingerprintPage(Schema):
    """Fingerprints, the newest first."""

    fingerprints: tuple[FingerprintRecord, ...]
    next_page_token: str | None = None


class Dependent(Schema):
    """A recommendation that is served, and was measured under a fingerprint."""

    project_id: str
    target_key: str
    recommendation_id: str
    model: str
    freshness: Freshness
    changed_fields: tuple[str, ...]


class FingerprintDetail(FingerprintRecord):
    """One fingerprint with what depends on it."""

    dependents: tuple[Dependent, ...]
    """At most 500, by study key."""

"""Schemas of fingerprints (hardware and software versions): the workers that had them over time, their changes, and the
recommendations measured under them."""

from datetime import datetime
from enum import StrEnum

from pydantic import JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Fingerprint


class Freshness(StrEnum):
    """Whether the machines still match the fingerprint (hardware and software versions) under which a recommendation
    was measured."""

    FRESH = "fresh"
    STALE = "stale"


class Effect(StrEnum):
    """Consequence of a difference between two fingerprints (hardware and software versions)."""

    STALE = "stale"
    """Measurements under the two fingerprints cannot be compared, and recommendations must be measured again."""
    CONFIDENCE = "confidence"
    """Measurements under the two fingerprints can be compared, with lower confidence."""


class FieldChange(Schema):
    """Field in which two fingerprints (hardware and software versions) differ so that measurements are affected."""

    field: str
    was: JsonValue
    now: JsonValue
    effect: Effect

    def describe(self) -> str:
        """Return a part of a sentence that names the changed field with its old and its new value."""
        return f"{self.field} {self.was} → {self.now}"


class FingerprintHolder(Schema):
    """Period during which a worker had a fingerprint (hardware and software versions)."""

    worker_id: str
    worker: str
    """Name of the worker that had the fingerprint."""
    since: datetime
    until: datetime | None
    """End of the period in which the worker had the fingerprint. None if the worker still has it, or had it when it was
    last in contact."""
    is_live: bool
    """Whether the worker has the fingerprint now and is live, which means that it was in contact recently."""
    predecessor_id: str | None
    """Id of the fingerprint that the worker had before this one."""
    changes: tuple[FieldChange, ...]
    """Fields of the fingerprint that differ from the worker's previous fingerprint. A value that was not known before
    does not count as a change."""


class FingerprintRecord(Schema):
    """Fingerprint (hardware and software versions), identified by its content, with the workers that had it."""

    fingerprint_id: str
    fingerprint: Fingerprint
    is_overridden: bool
    """Whether some fields were declared with `--fingerprint-override`. Such a fingerprint describes no real machine."""
    first_seen_at: datetime
    is_current: bool
    """Whether any worker, live or not, currently has the fingerprint."""
    holders: tuple[FingerprintHolder, ...]
    """Periods during which workers visible to the caller had the fingerprint, newest first."""


class FingerprintPage(Schema):
    """Page of fingerprints (hardware and software versions), newest first."""

    fingerprints: tuple[FingerprintRecord, ...]
    next_page_token: str | None = None


class Dependent(Schema):
    """Active recommendation that was measured under a given fingerprint (hardware and software versions)."""

    project_id: str
    target_key: str
    recommendation_id: str
    model: str
    freshness: Freshness
    changed_fields: tuple[str, ...]


class FingerprintDetail(FingerprintRecord):
    """Fingerprint (hardware and software versions) with the active recommendations measured under it."""

    dependents: tuple[Dependent, ...]
    """Active recommendations measured under the fingerprint, at most 500, sorted by tuning target key."""

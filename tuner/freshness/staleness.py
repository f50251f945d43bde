"""Staleness: whether a recommendation still applies to the machines that would run it now, and when a change is
announced."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shardtune.api_schemas.machines.fingerprints import Effect, FieldChange, Freshness
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.tuner.freshness.fingerprints import changes, sort_key


@dataclass(frozen=True)
class Machine:
    """Worker with the hardware of a tuning target, with its latest known fingerprint (hardware and software
    versions)."""

    fingerprint: Fingerprint
    since: datetime
    """Time from which the worker has had this fingerprint (hardware and software versions)."""
    is_ready: bool
    """Whether the worker is connected and accepts tasks."""


@dataclass(frozen=True)
class TargetMeasurement:
    """Comparison of the present machines with the fingerprint (hardware and software versions) of a measurement."""

    changes: tuple[FieldChange, ...]
    """Differences between the measurement's machine and the present machine that is most similar to it; also those that
    only lower the confidence."""
    stale_changes: tuple[FieldChange, ...] = ()
    """Differences that make the measurement stale, one per field, from all machines that could run the tuning target.
    Empty while one of these machines is comparable with the measurement's."""
    values: tuple[str, ...] = ()
    """Differences that make the measurement stale, as texts `field=value`."""
    changed_at: datetime | None = None
    """Time at which the newest of the stale values first appeared; None while the measurement is fresh."""

    @property
    def stale_fields(self) -> tuple[str, ...]:
        """Names of the fields whose differences make the measurement stale."""
        return tuple(change.field for change in self.stale_changes)


@dataclass(frozen=True)
class StoredFreshness:
    """Stored freshness of a recommendation: fresh or stale, since when, and the changes announced."""

    freshness: Freshness = Freshness.FRESH
    changed_fields: tuple[str, ...] = ()
    stale_since: datetime | None = None
    announced_at: datetime | None = None
    announced_for: tuple[str, ...] = ()
    """Changes that were announced to the user, as texts `field=value`."""


def assess(measured_on: Fingerprint, nodes: int, machines: Sequence[Machine]) -> TargetMeasurement | None:
    """Compare a measurement's fingerprint (hardware and software versions) with the present machines; None where no
    machine is ready.

    The measurement is stale when some machine is ready, but no machine, whether ready or silent for a while, is
    comparable with it.
    """
    if not any(machine.is_ready for machine in machines):
        return None
    compared = [(changes(measured_on, machine.fingerprint, nodes), machine) for machine in machines]
    # While a change rolls over a fleet, machines with the old values keep an answer fresh, also those that are down for
    # it: they may come back as they were.
    nearest = min((differences for differences, _ in compared), key=lambda item: (len(_stale_only(item)), len(item)))
    if not _stale_only(nearest):
        return TargetMeasurement(nearest)
    first_seen: dict[str, datetime] = {}
    by_field: dict[str, FieldChange] = {}
    for differences, machine in compared:
        for change in _stale_only(differences) if machine.is_ready else ():
            by_field.setdefault(change.field, change)
            value = f"{change.field}={change.now}"
            first_seen[value] = min(machine.since, first_seen.get(value, machine.since))
    return TargetMeasurement(
        changes=nearest,
        stale_changes=tuple(sorted(by_field.values(), key=lambda change: sort_key(change.field))),
        values=tuple(sorted(first_seen)),
        changed_at=max(first_seen.values()),
    )


def update_marks(
    stored: StoredFreshness, ranking_state: TargetMeasurement, is_current: bool, now: datetime, debounce: timedelta
) -> StoredFreshness:
    """Freshness to store for a recommendation. A change is announced once, when no new change has appeared for the
    debounce time.

    `is_current`: whether this recommendation is the one currently given for the target; older recommendations are
    marked without an announcement.
    """
    if ranking_state.changed_at is None:
        return StoredFreshness(changed_fields=tuple(change.field for change in ranking_state.changes))
    since = stored.stale_since or now
    # A fleet changes machine by machine; the debounce turns its changes into one announcement.
    announced_at, announced_for = stored.announced_at, stored.announced_for
    is_news = not set(ranking_state.values) <= set(announced_for)
    if is_current and is_news and max(since, ranking_state.changed_at) + debounce <= now:
        announced_at, announced_for = now, tuple(sorted({*announced_for, *ranking_state.values}))
    return StoredFreshness(Freshness.STALE, ranking_state.stale_fields, since, announced_at, announced_for)


def _stale_only(differences: Sequence[FieldChange]) -> list[FieldChange]:
    return [change for change in differences if change.effect == Effect.STALE]

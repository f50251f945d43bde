"""Whether a recommendation still belongs to the machines that would run it now, and when that is announced."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shardtune.api_schemas.machines.fingerprints import Effect, FieldChange, Freshness
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.tuner.freshness.fingerprints import changes, place


@dataclass(frozen=True)
class Machine:
    """A worker with the hardware of a case, and what it has now or had when it was last heard of."""

    fingerprint: Fingerprint
    since: datetime
    """When it got this fingerprint."""
    is_ready: bool
    """It is live and takes work. Others only count where they still have the fingerprint: they may come back."""


@dataclass(frozen=True)
class TargetMeasurement:
    """How the machines of now stand to the fingerprint of a measurement."""

    changes: tuple[FieldChange, ...]
    """On the machine that is nearest to the measurement: what lowers the confidence, too."""
    stale_changes: tuple[FieldChange, ...] = ()
    """One of each field on any machine that would run the case; empty: some machine still has what was measured on."""
    values: tuple[str, ...] = ()
    """`field=value` of the same."""
    changed_at: datetime | None = None
    """When the newest of these values first appeared; None: it is fresh."""

    @property
    def stale_fields(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(change.field for change in self.stale_changes)


@dataclass(frozen=True)
class Marks:
    """What is written down about the freshness of a recommendation."""

    freshness: Freshness = Freshness.FRESH
    changed_fields: tuple[str, ...] = ()
    stale_since: datetime | None = None
    announced_at: datetime | None = None
    announced_for: tuple[str, ...] = ()
    """`field=value` of the changes it was announced for."""


def assess(measured_on: Fingerprint, nodes: int, machines: Sequence[Machine]) -> TargetMeasurement | None:
    """Stale when a machine is ready and none is left, ready or silent for a while, that compares with the measurement.

    While a change rolls over a fleet, those that still have the old values keep an answer fresh; those that are down
    for it do, too. None: no machine is ready, so nothing can be said.
    """
    if not any(machine.is_ready for machine in machines):
        return None
    compared = [(changes(measured_on, machine.fingerprint, nodes), machine) for machine in machines]
    nearest = min((found for found, _ in compared), key=lambda found: (len(_stale(found)), len(found)))
    if not _stale(nearest):
        return TargetMeasurement(nearest)
    first_seen: dict[str, datetime] = {}
    by_field: dict[str, FieldChange] = {}
    for found, machine in compared:
        for change in _stale(found) if machine.is_ready else ():
            by_field.setdefault(change.field, change)
            value = f"{change.field}={change.now}"
            first_seen[value] = min(machine.since, first_seen.get(value, machine.since))
    return TargetMeasurement(
        changes=nearest,
        stale_changes=tuple(sorted(by_field.values(), key=lambda change: place(change.field))),
        values=tuple(sorted(first_seen)),
        changed_at=max(first_seen.values()),
    )


def marked(
    now_written: Marks, ranking_state: TargetMeasurement, is_asked: bool, now: datetime, debounce: timedelta
) -> Marks:
    """What is to be written down. A change is announced once, when nothing new has appeared for the debounce.

    `is_asked`: whoever asks for the case is given this recommendation; older ones are marked, not announced.
    """
    if ranking_state.changed_at is None:
        return Marks(changed_fields=tuple(change.field for change in ranking_state.changes))
    since = now_written.stale_since or now
    announced_at, announced_for = now_written.announced_at, now_written.announced_for
    is_news = not set(ranking_state.values) <= set(announced_for)
    if is_asked and is_news and max(since, ranking_state.changed_at) + debounce <= now:
        announced_at, announced_for = now, tuple(sorted({*announced_for, *ranking_state.values}))
    return Marks(Freshness.STALE, ranking_state.stale_fields, since, announced_at, announced_for)


def _stale(found: Sequence[FieldChange]) -> list[FieldChange]:
    return [change for change in found if change.effect == Effect.STALE]

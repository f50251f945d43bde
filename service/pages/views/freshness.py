"""Whether an answer still belongs to the machines there are: its fingerprint against those of the workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from api_schemas.hardware import Fingerprint
from api_schemas.studies import Study
from db.rows import WorkerRow
from service import matching


@dataclass(frozen=True)
class Freshness:
    """How an answer stands to the workers."""

    word: Literal["fresh", "stale", "unchecked"]
    why: str
    changes: tuple[tuple[str, str, str], ...] = ()
    """Field, value then, value now."""


def of(study: Study, workers: Sequence[WorkerRow]) -> Freshness:
    """Fresh where a worker still has the fingerprint of the measurements; stale where it has the hardware with changes."""
    able = [worker for worker in workers if matching.offers(worker.inventory, study.cluster)]
    if study.fingerprint is None or not able:
        return Freshness("unchecked", "no registered worker has this hardware, so nothing can be compared")
    if any(worker.inventory.fingerprint == study.fingerprint for worker in able):
        return Freshness("fresh", "a registered worker still has the hardware and software this was measured on")
    newest = max(able, key=lambda worker: worker.seen_at)
    changes = differences(study.fingerprint, newest.inventory.fingerprint)
    named = ", ".join(f"{field} {was} → {now}" for field, was, now in changes)
    return Freshness("stale", f"{newest.name} has changed since: {named}", changes)


def differences(was: Fingerprint, now: Fingerprint) -> tuple[tuple[str, str, str], ...]:
    """Fields in which two fingerprints differ."""
    old, new = was.model_dump(), now.model_dump()
    return tuple((name, str(old[name]), str(new[name])) for name in old if old[name] != new[name])

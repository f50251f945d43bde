"""Whether an answer still belongs to the machines there are: what is known of it, else its fingerprint against the workers'."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.machines.fingerprints import Effect, FieldChange
from shardtune.api_schemas.studies.study import Study
from shardtune.db.queries.workers import OfferedMachine
from shardtune.service.workers import compatibility
from shardtune.tuner.freshness.fingerprints import changes


@dataclass(frozen=True)
class StudyFreshness:
    """How an answer stands to the workers."""

    word: Literal["fresh", "stale", "unchecked"]
    why: str
    changed: tuple[str, ...] = ()
    """Fields of the fingerprint."""
    changes: str = ""
    """These with what they were and are, where a worker has them."""


def of(study: Study, workers: Sequence[OfferedMachine], stale_fields: Sequence[str] = ()) -> StudyFreshness:
    """Stale as the service has marked it, by `stale_fields`; else where no registered worker compares any more.

    Of the workers given, those that serve the study's project: the others' machines are none of its business.
    """
    serving = [worker for worker in workers if worker.project_id in (None, study.project_id)]
    able = [worker for worker in serving if compatibility.same_shape(worker.cluster, study.cluster)]
    if study.fingerprint is None or not able:
        return StudyFreshness("unchecked", "no registered worker has this hardware, so nothing can be compared")
    fingerprint, nodes = study.fingerprint, study.cluster.nodes
    found = {worker.name: _stale(changes(fingerprint, worker.fingerprint, nodes)) for worker in able}
    nearest = min(able, key=lambda worker: (len(found[worker.name]), -worker.seen_at.timestamp()))
    changed = found[nearest.name]
    if not changed and not stale_fields:
        return StudyFreshness("fresh", "a registered worker still has the hardware and software this was measured on")
    named = ", ".join(change.describe() for change in changed) or ", ".join(stale_fields)
    fields = tuple(stale_fields) or tuple(change.field for change in changed)
    shown = ", ".join(change.describe() for change in changed)
    return StudyFreshness("stale", f"changed since, on worker {nearest.name}: {named}", fields, shown)


def _stale(found: Sequence[FieldChange]) -> list[FieldChange]:
    return [change for change in found if change.effect == Effect.STALE]

"""Freshness of an answer: the stored state, or its fingerprint compared with the registered workers'."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.machines.fingerprints import Effect, FieldChange
from shardtune.api_schemas.studies.study import Study
from shardtune.db.queries.offered_hardware import OfferedMachine
from shardtune.service.workers import hardware_shape
from shardtune.tuner.freshness.fingerprints import changes


@dataclass(frozen=True)
class StudyFreshness:
    """Freshness of a study's answer (whether hardware and software are still those it was measured on), with the
    reason."""

    word: Literal["fresh", "stale", "unchecked"]
    why: str
    changed: tuple[str, ...] = ()
    """Names of the fields of the machine's fingerprint (its hardware and software versions) that changed since the
    answer was measured."""
    changes: str = ""
    """Text with the old and new values of the changed fields; empty if no registered worker shows the new ones."""


def of(study: Study, workers: Sequence[OfferedMachine], stale_fields: Sequence[str] = ()) -> StudyFreshness:
    """Return whether a study's answer is fresh, stale or unchecked. It is stale if the service marked it so
    (`stale_fields`), or if every worker that could run the study has other hardware or software than the worker that
    measured it.

    Only workers that serve the study's project are considered.
    """
    # Another project's machines must not be shown, not even as a difference.
    serving = [worker for worker in workers if worker.project_id in (None, study.project_id)]
    matching = [worker for worker in serving if hardware_shape.has_same_shape(worker.cluster, study.cluster)]
    if study.fingerprint is None or not matching:
        return StudyFreshness("unchecked", "no registered worker has this hardware, so its freshness is unknown")
    fingerprint, nodes = study.fingerprint, study.cluster.nodes
    changes_by_worker = {
        worker.name: _stale_changes(changes(fingerprint, worker.fingerprint, nodes)) for worker in matching
    }
    nearest = min(matching, key=lambda worker: (len(changes_by_worker[worker.name]), -worker.seen_at.timestamp()))
    changed = changes_by_worker[nearest.name]
    if not changed and not stale_fields:
        return StudyFreshness(
            "fresh", "a registered worker, live or not, has the hardware and software this was measured on"
        )
    descriptions = ", ".join(change.describe() for change in changed) or ", ".join(stale_fields)
    fields = tuple(stale_fields) or tuple(change.field for change in changed)
    shown = ", ".join(change.describe() for change in changed)
    return StudyFreshness("stale", f"changed since, on worker {nearest.name}: {descriptions}", fields, shown)


def _stale_changes(field_changes: Sequence[FieldChange]) -> list[FieldChange]:
    return [change for change in field_changes if change.effect == Effect.STALE]

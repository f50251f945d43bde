"""Workers: who is alive, doing what, with which hardware and software, and what changed when."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from api_schemas.fingerprints import FieldChange
from api_schemas.hardware import Fingerprint
from db import fingerprints, overview, workers
from db.fingerprint_rows import FingerprintEraRow
from db.rows import RunRow, WorkerRow
from service import wording
from service.fingerprints import changes_of
from service.pages.views import words


@dataclass(frozen=True)
class Era:
    """A time in which a worker's fingerprint was the same."""

    since: datetime
    changes: tuple[FieldChange, ...]
    """Against the era before; empty for the first."""


@dataclass(frozen=True)
class WorkerCard:
    """One worker."""

    worker_id: str
    name: str
    is_draining: bool
    is_live: bool
    seen_at: datetime
    registered_at: datetime
    cluster: str
    memory: str
    activity: str
    study_id: str | None
    trial_number: int | None
    fingerprint: Fingerprint
    eras: tuple[Era, ...]


def cards(session: Session, live_since: datetime, project_id: str | None) -> tuple[WorkerCard, ...]:
    """All workers ever registered: the live ones first, then by name."""
    running = overview.running_on_workers(session)
    history = fingerprints.of_workers(session)
    found = [
        _card(row, running.get(row.id), row.seen_at >= live_since, _eras(history.get(row.id, [])))
        for row in workers.everyone(session)
        if project_id is None or row.project_id in (None, project_id)
    ]
    return tuple(sorted(found, key=lambda card: (not card.is_live, card.name)))


def _card(row: WorkerRow, run: RunRow | None, is_live: bool, eras: tuple[Era, ...]) -> WorkerCard:
    cluster = row.inventory.cluster
    return WorkerCard(
        worker_id=row.id,
        name=row.name,
        is_draining=row.is_draining,
        is_live=is_live,
        seen_at=row.seen_at,
        registered_at=row.registered_at,
        cluster=words.cluster(cluster),
        memory=words.cluster_memory(cluster),
        activity=_activity(run) if run else ("waiting for work" if is_live else "not heard of"),
        study_id=run.study_id if run else None,
        trial_number=run.trial.number if run and run.trial else None,
        fingerprint=row.inventory.fingerprint,
        eras=eras,
    )


def _activity(run: RunRow) -> str:
    what = "profiles the model" if run.trial is None else f"{run.purpose} run of trial {run.trial.number}"
    return f"{what}, {wording.step(run.progress)}"


def _eras(history: Sequence[FingerprintEraRow]) -> tuple[Era, ...]:
    return tuple(Era(era.since, changes_of(era)) for era in history)

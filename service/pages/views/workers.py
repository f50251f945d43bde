"""Workers: who is alive, doing what, with which hardware and software, and what changed when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db.queries import fingerprints, overview, workers
from shardtune.db.tables.fingerprints import FingerprintPeriodRow
from shardtune.db.tables.studies import AttemptRow, RunRow, WorkerRow
from shardtune.service.pages.views import words
from shardtune.service.pages.views.conditions import conditions_of, troubles
from shardtune.service.wording import cluster_words, host_words, study_words
from shardtune.service.workers.fingerprint_history import changes_of

OTHERS: Literal["others"] = "others"
"""In place of a run that is another project's."""


@dataclass(frozen=True)
class WorkerPeriod:
    """A time in which a worker's fingerprint was the same."""

    since: datetime
    changes: tuple[FieldChange, ...]
    """Against the period before; empty for the first."""


@dataclass(frozen=True)
class LastRun:
    """What a worker ended last, and what it saw of its machine meanwhile."""

    study_id: str
    trial_number: int | None
    what: str
    model: str
    end: str
    ended_at: datetime
    notes: tuple[tuple[str, str], ...]
    """Tone and sentence of each thing that was not as it should be."""


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
    hosts: str
    """Names and interfaces, of a worker over several."""
    memory: str
    activity: str
    study_id: str | None
    trial_number: int | None
    condition: str | None
    """What canaries have found wrong with it."""
    last: LastRun | None
    """Of live workers."""
    fingerprint: Fingerprint
    periods: tuple[WorkerPeriod, ...]


def cards(
    session: Session, live_since: datetime, project_id: str | None, offset: int, limit: int
) -> tuple[tuple[WorkerCard, ...], int]:
    """Workers that serve a project (None: any) from `offset` on, the live ones first, then by name; how many there are.

    What they do for other projects is not shown, but that they are busy with it.
    """
    running = {
        worker_id: run if project_id in (None, whose) else OTHERS
        for worker_id, (run, whose) in overview.running_on_workers(session).items()
    }
    rows, total = workers.live_first(session, project_id, live_since, offset, limit)
    history = fingerprints.of_workers(session, [row.id for row in rows])
    live = {row.id: overview.last_attempt(session, row.id, project_id) for row in rows if row.seen_at >= live_since}
    models = overview.model_names(session, {attempt.run.study_id for attempt in live.values() if attempt})
    last = {worker: _last(attempt, models) for worker, attempt in live.items() if attempt is not None}
    found = (
        _card(row, running.get(row.id), row.id in live, last.get(row.id), _periods(history.get(row.id, [])))
        for row in rows
    )
    return tuple(found), total


def _card(
    row: WorkerRow,
    doing: RunRow | Literal["others"] | None,
    is_live: bool,
    last: LastRun | None,
    periods: tuple[WorkerPeriod, ...],
) -> WorkerCard:
    cluster, run = row.offer.cluster, doing if isinstance(doing, RunRow) else None
    return WorkerCard(
        worker_id=row.id,
        name=row.name,
        is_draining=row.is_draining,
        is_live=is_live,
        seen_at=row.seen_at,
        registered_at=row.registered_at,
        cluster=cluster_words.cluster(cluster),
        hosts=host_words.hosts(row.inventory),
        memory=words.cluster_memory(cluster),
        activity=_activity(doing, is_live),
        study_id=run.study_id if run else None,
        trial_number=run.trial.number if run and run.trial else None,
        condition=row.condition,
        last=last,
        fingerprint=row.offer.fingerprint,
        periods=periods,
    )


def _activity(doing: RunRow | Literal["others"] | None, is_live: bool) -> str:
    if doing is None:
        return "waiting for work" if is_live else "not heard of"
    return "works for another project" if doing == OTHERS else f"{_what(doing)}, {study_words.step(doing.progress)}"


def _what(run: RunRow) -> str:
    return (
        "profiles the model"
        if run.trial is None
        else f"{study_words.kind_of_run(run.purpose)} of trial {run.trial.number}"
    )


def _last(attempt: AttemptRow, models: Mapping[str, str]) -> LastRun:
    run, failure = attempt.run, attempt.failure
    assert attempt.finished_at is not None and attempt.end is not None, "asked for"
    said: tuple[tuple[str, str], ...] = (
        (("bad", failure.message),) if failure and failure.kind is FailureKind.DEVICE else ()
    )
    return LastRun(
        study_id=run.study_id,
        trial_number=run.trial.number if run.trial else None,
        what="model_summary" if run.trial is None else _what(run),
        model=models[run.study_id],
        end=words.ENDS.get(attempt.end, attempt.end),
        ended_at=attempt.finished_at,
        notes=said + troubles(conditions_of(run.measurement if attempt.end == "complete" else None, failure)),
    )


def _periods(history: Sequence[FingerprintPeriodRow]) -> tuple[WorkerPeriod, ...]:
    return tuple(WorkerPeriod(period.since, changes_of(period)) for period in history)

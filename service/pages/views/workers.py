"""Values of the workers' page: state, activity, hardware and software of each worker, and their changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db.queries import fingerprints, overview, workers
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.pages.views import words
from shardtune.service.pages.views.conditions import conditions_of, troubles
from shardtune.service.wording import cluster_words, host_words, study_words
from shardtune.service.wording.progress import activity_words
from shardtune.service.workers.fingerprint_history import changes_of

OTHERS: Literal["others"] = "others"
"""Placeholder for a run of another project, so that a worker's card shows nothing about that run."""


@dataclass(frozen=True)
class WorkerPeriod:
    """Period in which a worker's fingerprint (hardware and software versions) did not change."""

    since: datetime
    changes: tuple[FieldChange, ...]
    """Changes of the fingerprint relative to the previous period; empty for the first period."""


@dataclass(frozen=True)
class LastRun:
    """Last run of a worker, with warnings about its machine."""

    study_id: str
    trial_number: int | None
    run: str
    model: str
    end: str
    ended_at: datetime
    notes: tuple[tuple[str, str], ...]
    """Tone (colour) and sentence of each warning about the worker's machine."""


@dataclass(frozen=True)
class WorkerCard:
    """One worker with its state, its activity and its fingerprint (hardware and software versions)."""

    worker_id: str
    name: str
    is_draining: bool
    is_live: bool
    seen_at: datetime
    registered_at: datetime
    cluster: str
    hosts: str
    """Hosts with their network interfaces, if the worker spans several hosts. For a worker that has only a part of a
    host, that part. Otherwise empty."""
    memory: str
    activity: str
    study_id: str | None
    trial_number: int | None
    set_aside: str | None
    condition: str | None
    """Slowdown that canaries (repeated runs of a recommendation) found on this worker; None without a slowdown."""
    last: LastRun | None
    """Last run of the worker; None if the worker is not live."""
    fingerprint: Fingerprint
    periods: tuple[WorkerPeriod, ...]


def cards(
    session: Session, live_since: datetime, project_id: str | None, offset: int, limit: int
) -> tuple[tuple[WorkerCard, ...], int]:
    """Return one page of the workers that serve a project, and the total number of these workers. Live workers come
    first, then the others, each group by name. If the project is None, workers of all projects are returned.

    Runs for other projects are not shown; a worker with such a run only appears as busy.
    """
    # Another project's run must not be shown, not even its model's name.
    running = {
        worker_id: run if project_id in (None, whose) else OTHERS
        for worker_id, (run, whose) in overview.running_on_workers(session).items()
    }
    rows, total = workers.live_first(session, project_id, live_since, offset, limit)
    history = fingerprints.of_workers(session, [row.id for row in rows])
    live = {row.id: overview.last_attempt(session, row.id, project_id) for row in rows if row.seen_at >= live_since}
    # Names by one query: loading each study's spec would load whole model configurations.
    models = overview.model_names(session, {attempt.run.study_id for attempt in live.values() if attempt})
    last = {worker: _last(attempt, models) for worker, attempt in live.items() if attempt is not None}
    page_cards = (
        _card(row, running.get(row.id), row.id in live, last.get(row.id), _periods(history.get(row.id, [])))
        for row in rows
    )
    return tuple(page_cards), total


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
        set_aside=row.set_aside,
        condition=row.condition,
        last=last,
        fingerprint=row.offer.fingerprint,
        periods=periods,
    )


def _activity(doing: RunRow | Literal["others"] | None, is_live: bool) -> str:
    if doing is None:
        return "waiting for work" if is_live else "away"
    return (
        "works for another project"
        if doing == OTHERS
        else f"{_run_text(doing)}, {activity_words.describe_step(doing.progress)}"
    )


def _run_text(run: RunRow) -> str:
    return (
        "summarizes the model"
        if run.trial is None
        else f"{study_words.run_name(run.purpose)} of trial {run.trial.number}"
    )


def _last(attempt: AttemptRow, models: Mapping[str, str]) -> LastRun:
    run, failure = attempt.run, attempt.failure
    assert attempt.finished_at is not None and attempt.end is not None, "asked for"
    device_failure: tuple[tuple[str, str], ...] = (
        (("bad", failure.message),) if failure and failure.kind is FailureKind.DEVICE else ()
    )
    return LastRun(
        study_id=run.study_id,
        trial_number=run.trial.number if run.trial else None,
        run="model summary" if run.trial is None else _run_text(run),
        model=models[run.study_id],
        end=words.ENDS.get(attempt.end, attempt.end),
        ended_at=attempt.finished_at,
        notes=device_failure + troubles(conditions_of(run.measurement if attempt.end == "complete" else None, failure)),
    )


def _periods(history: Sequence[FingerprintPeriodRow]) -> tuple[WorkerPeriod, ...]:
    return tuple(WorkerPeriod(period.since, changes_of(period)) for period in history)

"""Convert changes of rows to events, and events to webhook messages, in the transaction of the change. `collect_events`
runs before every flush of a write session and `write_events` after it, so that no state changes without its event.
Events are numbered by the study's own counter; the caller that changes a study, its trials or attempts therefore holds
the study's lock."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import insert, inspect
from sqlalchemy.orm import Session
from sqlalchemy.orm.unitofwork import UOWTransaction

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import webhooks
from shardtune.db.tables.events import EventRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow
from shardtune.db.tables.webhooks import WebhookRow

CLOCK = "tells the time of events"
"""Key of the entry in a session's `info` that holds a function; the function returns the present time."""
_UNWRITTEN = "events that the flush is to write"
_WRITTEN = insert(EventRow.metadata.tables[EventRow.__tablename__]).inline()
"""SQL statement that inserts events. Adding them as rows of the session would also query their ids, which costs more
than everything else about an event."""


class _NewEvent(NamedTuple):
    order: int
    """Sort key of an event among the events written together: events about an end come before their consequences, and
    events of studies come last."""
    study_id: str
    type: EventType
    data: dict[str, Any]


def collect_events(session: Session, _flush: UOWTransaction, _instances: Any) -> None:
    """Collect the events for the changes that a session is about to write (listener of SQLAlchemy's `before_flush`)."""
    with session.no_autoflush:
        events = [event for row in (*session.new, *session.dirty) for event in _events_of(session, row)]
        listening = webhooks.enabled(session) if events else ()
        for event in sorted(events, key=lambda event: event.order):
            _append_event(session, event, listening)


def _append_event(session: Session, event: _NewEvent, listening: Sequence[WebhookRow]) -> None:
    new = (row for row in session.new if isinstance(row, StudyRow) and row.id == event.study_id)
    study = next(new, None) or session.get(StudyRow, event.study_id)
    assert study is not None, event.study_id
    study.last_event = (study.last_event or 0) + 1
    now = session.info[CLOCK]()
    written = {"study_id": study.id, "number": study.last_event, "type": event.type, "created_at": now}
    session.info.setdefault(_UNWRITTEN, []).append(written | {"data": event.data})
    data = {"study_id": study.id, "number": study.last_event} | event.data
    _send_message(session, listening, study.id, study.project_id, event.type, data, now)


def write_events(session: Session, _flush: UOWTransaction) -> None:
    """Write the collected events once the changed studies have their rows (listener of SQLAlchemy's `after_flush`)."""
    rows = session.info.pop(_UNWRITTEN, None)
    if rows:
        session.connection().execute(_WRITTEN, rows)


def notify(
    session: Session, *, project_id: str, study_id: str, kind: EventType, data: dict[str, Any], now: datetime
) -> None:
    """Send webhooks a message that is not part of a study's event stream, such as `best.stale`. `study_id` names the
    study behind the recommendation; webhooks of this study also receive the message."""
    _send_message(session, webhooks.enabled(session), study_id, project_id, kind, {"study_id": study_id} | data, now)


def _send_message(
    session: Session,
    listening: Sequence[WebhookRow],
    study_id: str,
    project_id: str,
    kind: EventType,
    data: dict[str, Any],
    now: datetime,
) -> None:
    receivers = [
        webhook
        for webhook in listening
        if webhook.study_id in (None, study_id) and webhook.project_id in (None, project_id)
        if not webhook.events or kind in webhook.events
    ]
    if not receivers:
        return
    body = json.dumps({"type": kind, "timestamp": now.isoformat(), "data": data})
    # One that was deleted since it was read would take the change down with it.
    kept = webhooks.lock_existing(session, [webhook.id for webhook in receivers])
    for webhook in receivers:
        if webhook.id in kept:
            webhooks.add_delivery(session, webhook, kind, body, now)


def _events_of(session: Session, row: object) -> Iterator[_NewEvent]:
    match row:
        case StudyRow():
            yield from _events_of_study(row)
        case TrialRow():
            yield from _events_of_trial(row)
        case AttemptRow():
            yield from _events_of_attempt(session, row)


def _has_changed(row: object, name: str) -> bool:
    return bool(inspect(row, raiseerr=True).attrs[name].history.has_changes())


def _replaced_values(row: object, name: str) -> Sequence[Any]:
    """Return the previously stored value of a column that this transaction replaces."""
    return inspect(row, raiseerr=True).attrs[name].history.deleted or ()


def _best_figures(best: Contender) -> dict[str, Any]:
    figures = {"trial_number": best.trial_number, "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu}
    return figures | {"description": best.description}


def _events_of_study(row: StudyRow) -> Iterator[_NewEvent]:
    if inspect(row).pending:
        yield _NewEvent(0, row.id, EventType.STUDY_CREATED, {"model": row.spec.model.name})
        return
    # The service itself narrows the space to the backends that a user's script takes: that extends nothing.
    if any(replaced.budget != row.spec.budget for replaced in _replaced_values(row, "spec")):
        yield _NewEvent(4, row.id, EventType.STUDY_EXTENDED, {"budget": row.spec.budget.model_dump(mode="json")})
    if _has_changed(row, "best_so_far") and row.best_so_far is not None:
        figures = _best_figures(row.best_so_far)
        # How often it was run changes with each validation run, which is no news.
        if figures not in [_best_figures(best) for best in _replaced_values(row, "best_so_far") if best is not None]:
            yield _NewEvent(5, row.id, EventType.STUDY_BEST_CHANGED, figures)
    if _has_changed(row, "phase"):
        yield _NewEvent(6, row.id, EventType.STUDY_PHASE_CHANGED, {"phase": row.phase.value})
    if _has_changed(row, "state"):
        is_first = StudyState.WAITING in _replaced_values(row, "state")
        going_on = "started" if is_first else "resumed"
        word = going_on if row.state is StudyState.RUNNING else row.state.value
        yield _NewEvent(7, row.id, EventType(f"study.{word}"), {"state": row.state.value, "reason": row.reason})


def _events_of_trial(row: TrialRow) -> Iterator[_NewEvent]:
    data: dict[str, Any] = {"trial_number": row.number, "state": row.state.value}
    if inspect(row).pending:
        created = {"state": TrialState.WAITING.value, "origin": row.origin, "description": row.config.describe()}
        yield _NewEvent(2, row.study_id, EventType.TRIAL_CREATED, data | created)
        # One that is made for a worker that waits is given out in the same transaction.
        if row.state is not TrialState.WAITING:
            yield _NewEvent(2, row.study_id, EventType(f"trial.{row.state.value}"), data)
    elif _has_changed(row, "state"):
        if row.failure is not None:
            data |= {"failure": row.failure.kind.value, "message": row.failure.message}
        yield _NewEvent(2, row.study_id, EventType(f"trial.{row.state.value}"), data)


def _events_of_attempt(session: Session, row: AttemptRow) -> Iterator[_NewEvent]:
    # A run and a trial that are written with the attempt have no keys yet to be found by.
    run = row.run or session.get_one(RunRow, row.run_id)
    trial = run.trial
    data = {
        "run_id": run.id,
        "purpose": run.purpose,
        "attempt": row.attempt,
        "worker_id": row.worker_id,
        "trial_number": trial.number if trial is not None else None,
    }
    if inspect(row).pending:
        yield _NewEvent(3, run.study_id, EventType.RUN_LEASED, data)
    elif _has_changed(row, "end") and row.end is not None:
        measured = run.measurement.tokens_per_s_per_gpu if run.measurement is not None else None
        figures = {"end": row.end, "gpu_seconds": row.gpu_seconds, "tokens_per_s_per_gpu": measured}
        yield _NewEvent(1, run.study_id, EventType.RUN_ENDED, data | figures)

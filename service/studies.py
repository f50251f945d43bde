"""Create, read, list and cancel studies. What a study does while it runs stands in service.search."""

import logging
import secrets
from collections.abc import Mapping

from sqlalchemy.orm import Session

from api_schemas.exports import Export, ExportFormat
from api_schemas.studies import Contender, Study, StudyPhase, StudyResult, StudySpec, StudyState
from api_schemas.trials import Rejection, Trial
from db import leases, studies, trials
from db.rows import StudyRow
from service import checks, matching, moves, search, steps, views, workers
from service.context import Context
from service.errors import Conflict, NotFound, invalid
from tuner import export, ranking

log = logging.getLogger(__name__)

_UNFINISHED = (StudyState.RUNNING, StudyState.PAUSED)


def create(context: Context, spec: StudySpec) -> Study:
    """Store a study and its profile run.

    Raises:
        Invalid: nobody could run it, or nothing in it could be searched; nothing is stored then.
    """
    with context.db.read() as session:
        cluster, worker = matching.resolve_cluster(spec, workers.live(context, session))
        matching.check_model(spec.model, worker)
        has_nvme = worker.inventory.nvme_path is not None
        baseline = checks.check(spec, cluster, has_nvme)
    with context.db.write() as session:
        now = context.now()
        study = StudyRow(
            id=f"study-{secrets.token_hex(6)}",
            state=StudyState.RUNNING,
            phase=StudyPhase.PROFILE,
            spec=spec,
            cluster=cluster,
            baseline=baseline.config,
            notes=list(baseline.notes),
            has_nvme=has_nvme,
            created_at=now,
        )
        session.add(study)
        session.flush()
        leases.add_run(session, study, None, "profile", now)
        log.info("study created", extra={"study": study.id, "model": spec.model.name})
        return views.study(study, {}, 0)


def read(context: Context, study_id: str) -> Study:
    """One study."""
    with context.db.read() as session:
        return _read_models(session, [must_exist(session, study_id)])[0]


def newest(context: Context, state: StudyState | None, limit: int) -> list[Study]:
    """Studies, newest first."""
    with context.db.read() as session:
        return _read_models(session, list(studies.newest(session, state, limit)))


def read_trials(context: Context, study_id: str) -> list[Trial]:
    """The study's trials by number, with their runs and attempts."""
    with context.db.read() as session:
        must_exist(session, study_id)
        return [views.trial(row) for row in trials.of_study(session, study_id, with_attempts=True)]


def read_rejections(context: Context, study_id: str) -> list[Rejection]:
    """Configurations the memory gate refused."""
    with context.db.read() as session:
        must_exist(session, study_id)
        return [row.value for row in trials.rejections(session, study_id)]


def cancel(context: Context, study_id: str) -> Study:
    """End a study and take its runs from their workers; a cancelled study stays as it is."""
    with context.db.write() as session:
        must_exist(session, study_id)
        row = studies.lock(session, study_id)
        if row.state in _UNFINISHED:
            moves.end_study(session, row, StudyState.CANCELLED, "cancelled by its user", context.now())
            log.info("study cancelled", extra={"study": study_id})
        elif row.state is not StudyState.CANCELLED:
            raise Conflict(
                "study_ended", f"study {study_id} is {row.state.value}; only a running study can be cancelled"
            )
        session.flush()
        return _read_models(session, [row])[0]


def pause(context: Context, study_id: str, paused: bool) -> Study:
    """Stop giving out runs of a study, or go on with it.

    Raises:
        Conflict: it has ended.
    """
    with context.db.write() as session:
        must_exist(session, study_id)
        row = studies.lock(session, study_id)
        if row.state not in _UNFINISHED:
            raise Conflict("study_ended", f"study {study_id} is {row.state.value}; create a new one")
        moves.pause_study(row, paused)
        log.info("study paused" if paused else "study resumed", extra={"study": study_id})
    if not paused:
        steps.advance(context, study_id)
    return read(context, study_id)


def best(context: Context, study_id: str) -> StudyResult:
    """The answer of a complete study.

    Raises:
        Conflict: it has none (yet).
    """
    with context.db.read() as session:
        return _result(must_exist(session, study_id))


def export_files(context: Context, study_id: str, which: str) -> Mapping[str, str]:
    """Ready-to-use files of the best, of the baseline, or of a trial by its number.

    Raises:
        Conflict: it has not been measured (yet).
    """
    with context.db.read() as session:
        row = must_exist(session, study_id)
        contender = _contender(session, row, which)
        study = _read_models(session, [row])[0]
    return export.files(study, contender)


def export_as(context: Context, study_id: str, which: str, form: ExportFormat) -> Export:
    """The same in the form of one consumer, with what that cannot say.

    Raises:
        Conflict: it has not been measured (yet).
        Invalid: the consumer has no such backend.
    """
    with context.db.read() as session:
        row = must_exist(session, study_id)
        contender = _contender(session, row, which)
        study = _read_models(session, [row])[0]
    try:
        return export.export(study, contender, form)
    except ValueError as error:
        raise invalid("format", form, f"format ({form!r}): {error}") from error


def _contender(session: Session, row: StudyRow, which: str) -> Contender:
    if which == "best":
        return _result(row).best
    if which == "baseline":
        return _result(row).baseline
    trial = trials.by_number(session, row.id, int(which)) if which.isdecimal() else None
    if trial is None:
        raise NotFound("unknown_trial", f"which ({which!r}) is not best, baseline or the number of a trial of {row.id}")
    seen = search.observation(trial, row.match_round)
    if seen.measurement is None:
        raise Conflict(
            "trial_unmeasured", f"trial {which} is {trial.state.value} and has no measurement; choose another"
        )
    return ranking.contender(seen)


def _result(row: StudyRow) -> StudyResult:
    if row.result is None:
        reason = f": {row.reason}" if row.reason else ""
        wait = "; wait until it is complete" if row.state in _UNFINISHED else ""
        raise Conflict("study_unfinished", f"study {row.id} is {row.state.value} ({row.phase.value}){reason}{wait}")
    return row.result


def must_exist(session: Session, study_id: str) -> StudyRow:
    """A study's row.

    Raises:
        NotFound: no such study.
    """
    row = studies.get(session, study_id)
    if row is None:
        raise NotFound("unknown_study", f"study {study_id} does not exist; GET /v1/studies lists those that do")
    return row


def _read_models(session: Session, rows: list[StudyRow]) -> list[Study]:
    ids = [row.id for row in rows]
    counts, rejected = studies.trial_counts(session, ids), studies.rejection_counts(session, ids)
    return [views.study(row, counts.get(row.id, {}), rejected.get(row.id, 0)) for row in rows]

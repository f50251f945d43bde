"""Queries on GPU-seconds (wall seconds × ranks): of all projects by month, of a study's validation runs, and of
retuning (used, in use and expected)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import JSON, ColumnElement, SQLColumnExpression, and_, bindparam, func, or_, select, type_coerce
from sqlalchemy.orm import Session, load_only

from shardtune.api_schemas.retuning.retunes import RetuneOutcome, RetuneState
from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import best
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow

_MEASURED = (RetuneOutcome.KEPT, RetuneOutcome.REPLACED, RetuneOutcome.INCONCLUSIVE)
_BESIDE_THE_ANSWER = (RunPurpose.SUSTAINED, RunPurpose.RECIPE)
"""Purposes of runs that no repeated measurement of a recommendation makes, although the study that found it did."""
# Made once, since making it costs more than running it.
_OF_VALIDATION_RUNS = (
    select(func.coalesce(func.sum(AttemptRow.gpu_seconds), 0.0))
    .join(RunRow, RunRow.id == AttemptRow.run_id)
    .where(RunRow.study_id == bindparam("of_study"), RunRow.purpose == RunPurpose.VALIDATION)
)


@dataclass(frozen=True)
class InFlight:
    """Run that a worker executes now."""

    study_id: str
    project_id: str
    seconds: float
    """Seconds since the run's current attempt began, without those in which it waited for a quiet machine."""
    ranks: int


def spent_since(session: Session, project_id: str | None, moment: datetime) -> dict[str, float]:
    """Return the GPU-seconds by project that the service's own studies used in attempts that ended since a given
    moment. They are limited to one project; None means all projects."""
    query = (
        select(StudyRow.project_id, func.coalesce(func.sum(AttemptRow.gpu_seconds), 0.0).label("gpu_seconds"))
        .join(RunRow, RunRow.id == AttemptRow.run_id)
        .join(StudyRow, StudyRow.id == RunRow.study_id)
        .where(AttemptRow.finished_at >= moment, StudyRow.purpose != StudyPurpose.USER)
        .group_by(StudyRow.project_id)
    )
    query = query if project_id is None else query.where(StudyRow.project_id == project_id)
    return {row.project_id: row.gpu_seconds for row in session.execute(query)}


def in_flight(session: Session, now: datetime) -> list[InFlight]:
    """Return the runs that workers execute now and that belong to studies which the service created itself."""
    return list(_running(session, StudyRow.purpose != StudyPurpose.USER, now))


def running_gpu_seconds(session: Session, project_id: str, now: datetime) -> float:
    """Return the GPU-seconds that a project's running attempts have used so far. The time in which an attempt waited
    for a quiet machine does not count, as far as its lease allowed waiting."""
    return sum(run.seconds * run.ranks for run in _running(session, StudyRow.project_id == project_id, now))


def _running(session: Session, of_studies: ColumnElement[bool], now: datetime) -> Iterator[InFlight]:
    """Yield the runs of some studies that workers execute now."""
    query = (
        select(RunRow, StudyRow, AttemptRow)
        .join(StudyRow, StudyRow.id == RunRow.study_id)
        .join(AttemptRow, and_(AttemptRow.run_id == RunRow.id, AttemptRow.attempt == RunRow.attempt))
        .where(RunRow.state == TrialState.RUNNING, of_studies)
        .options(load_only(RunRow.study_id, RunRow.purpose, RunRow.started_at, RunRow.lease_until, RunRow.progress))
        .options(load_only(StudyRow.project_id, StudyRow.cluster, StudyRow.spec))
        .options(load_only(AttemptRow.waited_before_s, AttemptRow.may_wait_s))
    )
    for run, study, attempt in session.execute(query):
        waited_s = attempt.waited_s(run.progress, study.spec.wait_for_quiet_s)
        # A worker stops its ranks before its lease expires; the service may end the run only later.
        end = now if run.lease_until is None else min(now, run.lease_until)
        leased_s = (end - run.started_at).total_seconds() if run.started_at else 0.0
        ranks = 1 if run.purpose == RunPurpose.MODEL_SUMMARY else study.cluster.world_size
        yield InFlight(study.id, study.project_id, max(0.0, leased_s - waited_s), ranks)


def gpu_seconds_of_validation_runs(session: Session, study_id: str) -> float:
    """Return the GPU-seconds of all attempts at a study's validation runs (those of its final comparison)."""
    # Asked for by the study: a list of its runs would be another statement for each length, none of them prepared.
    return session.scalars(_OF_VALIDATION_RUNS, {"of_study": study_id}).one() or 0.0


def most_expensive_attempt(session: Session, study_ids: Iterable[str]) -> float | None:
    """Return the GPU-seconds of the most expensive ended attempt of the given studies. Runs that compare considered
    recipes (numerical formats and optimizers) and sustained runs are left out: a repeated measurement has no such runs,
    and their hundreds of steps cost more than any other run."""
    query = select(func.max(AttemptRow.gpu_seconds)).join(RunRow, RunRow.id == AttemptRow.run_id)
    is_repeated = RunRow.study_id.in_(list(study_ids)), RunRow.purpose.not_in(_BESIDE_THE_ANSWER)
    return session.scalars(query.where(*is_repeated)).one()


def tested_study(session: Session, study_id: str) -> str | None:
    """Return the study that found the result which a study of a retune (repeated measurement of a recommendation)
    tests."""
    query = select(RetuneRow).where(
        or_(RetuneRow.challenge_study_id == study_id, RetuneRow.search_study_id == study_id)
    )
    row = session.scalars(query.limit(1)).first()
    return None if row is None else incumbent_study(session, row.project_id, row.target_key)


def incumbent_study(session: Session, project_id: str, target_key: str) -> str | None:
    """Return the study behind the recommended configuration of a tuning target (model + workload + cluster)."""
    row = best.get_target(session, project_id, target_key)
    return None if row is None or row.recommended is None else row.recommended.study_id


def last_retune_cost(session: Session, project_id: str, target_key: str) -> float | None:
    """Return the GPU-seconds of the last retune (repeated measurement of a recommendation) of a tuning target (model,
    workload, cluster) that measured anything."""
    query = (
        select(RetuneRow.gpu_seconds)
        .where(
            RetuneRow.project_id == project_id,
            RetuneRow.target_key == target_key,
            RetuneRow.state == RetuneState.ENDED,
            RetuneRow.outcome.in_(_MEASURED),
            RetuneRow.gpu_seconds > 0,
        )
        .order_by(RetuneRow.ended_at.desc())
        .limit(1)
    )
    return session.scalars(query).one_or_none()


def study_cost(session: Session, study_id: str) -> tuple[float, bool]:
    """Return the GPU-seconds of a study, without those of runs that compare recipes (precisions and optimizers) and of
    sustained runs. With it comes whether the study was a search that a user requested."""
    row = session.execute(select(StudyRow.gpu_seconds, StudyRow.purpose).where(StudyRow.id == study_id)).one()
    beside = (
        select(func.sum(AttemptRow.gpu_seconds))
        .join(RunRow, RunRow.id == AttemptRow.run_id)
        .where(RunRow.study_id == study_id, RunRow.purpose.in_(_BESIDE_THE_ANSWER))
    )
    spent_beside = session.scalars(beside).one() or 0.0
    return max(0.0, row.gpu_seconds - spent_beside), row.purpose == StudyPurpose.USER


@dataclass(frozen=True)
class AttemptCosts:
    """Costs of the ended attempts at runs, for one project, month and kind of study."""

    project_id: str
    month: str
    """Month in UTC in which the attempts ended, such as `2026-01`."""
    study_purpose: StudyPurpose
    system_kind: str | None
    """Kind of study in which the attempts were made, if the service started the study itself (`SystemStudyKind`);
    None for users' studies."""
    run_purpose: RunPurpose
    attempts: int
    gpu_seconds: float


def costs_since(session: Session, project_id: str | None, since: datetime) -> list[AttemptCosts]:
    """Return the costs of attempts that ended at or after a given moment, of one project or of all."""
    kind = type_coerce(StudyRow.system_study, JSON)["kind"].as_string()
    columns = (StudyRow.project_id, _month(session), StudyRow.purpose, kind, RunRow.purpose, AttemptRow.gpu_seconds)
    names = ("project_id", "month", "study_purpose", "system_kind", "run_purpose", "gpu_seconds")
    ended = (
        select(*(column.label(name) for column, name in zip(columns, names, strict=True)))
        .join(RunRow, RunRow.id == AttemptRow.run_id)
        .join(StudyRow, StudyRow.id == RunRow.study_id)
        .where(AttemptRow.finished_at >= since)
    )
    ended = ended if project_id is None else ended.where(StudyRow.project_id == project_id)
    # Grouped outside: an expression with parameters is another one each time Postgres sees it.
    each = ended.subquery().c
    by = tuple(each[name] for name in names[:-1])
    summed = (func.count().label("attempts"), func.coalesce(func.sum(each.gpu_seconds), 0.0).label("gpu_seconds"))
    return [AttemptCosts(**row._mapping) for row in session.execute(select(*by, *summed).group_by(*by))]


def _month(session: Session) -> SQLColumnExpression[str]:
    moment = AttemptRow.finished_at
    if session.get_bind().dialect.name == "postgresql":
        return func.to_char(func.timezone("UTC", moment), "YYYY-MM")
    return func.strftime("%Y-%m", moment)

"""GPU-seconds of attempts by project, month and what they were for."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import JSON, SQLColumnExpression, func, select, type_coerce
from sqlalchemy.orm import Session

from shardtune.api_schemas.studies import StudyPurpose
from shardtune.api_schemas.trials import RunPurpose
from shardtune.db.tables.studies import AttemptRow, RunRow, StudyRow


@dataclass(frozen=True)
class Spent:
    """Ended attempts of one kind."""

    project_id: str
    month: str
    """`2026-01`, in UTC."""
    study_purpose: StudyPurpose
    system_kind: str | None
    """Of the service's own studies (`SystemStudyKind`)."""
    run_purpose: RunPurpose
    attempts: int
    gpu_seconds: float


def spent(session: Session, project_id: str | None, since: datetime) -> list[Spent]:
    """What attempts used that ended at a moment or later, of a project or of all."""
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
    query = select(*by, func.count(), func.coalesce(func.sum(each.gpu_seconds), 0.0)).group_by(*by)
    return [Spent(*row) for row in session.execute(query)]


def _month(session: Session) -> SQLColumnExpression[str]:
    moment = AttemptRow.finished_at
    if session.get_bind().dialect.name == "postgresql":
        return func.to_char(func.timezone("UTC", moment), "YYYY-MM")
    return func.strftime("%Y-%m", moment)

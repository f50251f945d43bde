"""Fill the database with copies of one finished study, by SQL: what a service has after months.

Copies have trials, runs, attempts, a recommendation and a best configuration under a key of their own; they have no
events, which a service forgets after 90 days, and no rejections.
"""

import json
from typing import Any

import httpx
from sqlalchemy import Table, text

from shardtune.db.session import Database
from shardtune.db.tables.base import Row
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow

_BATCH = 500
"""Studies per transaction."""
_CHANGED = "sequence_length"


def fill(database: Database, template: str, trials: int) -> int:
    """Copy the study until this many trials are stored; returns how many there are."""
    with database.read() as session:
        each = session.execute(text("SELECT count(*) FROM trials WHERE study_id = :id"), {"id": template}).scalar_one()
        now = session.execute(text("SELECT count(*) FROM trials")).scalar_one()
        first = session.execute(text("SELECT count(*) FROM studies")).scalar_one()
    study_count = max(0, -(-(trials - now) // each))
    for start in range(first, first + study_count, _BATCH):
        with database.write() as session:
            if not database.is_sqlite:
                # Copies refer to what their template refers to: checking each reference again takes most of the time.
                session.execute(text("SET LOCAL session_replication_role = replica"))
            scope = {"template": template, "low": start, "high": min(start + _BATCH, first + study_count) - 1}
            for statement in _statements():
                session.execute(text(statement), scope)
    if study_count:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE" if database.is_sqlite else "VACUUM ANALYZE"))
    return int(now + study_count * each)


def reads(database: Database, http: httpx.Client, template: str) -> list[tuple[str, str]]:
    """Requests of a platform: (kind, path)."""
    study = http.get(f"/v1/studies/{template}").raise_for_status().json()
    with database.read() as session:
        query = text("SELECT target_key FROM recommendations WHERE study_id = :id")
        key = session.execute(query, {"id": template}).scalar_one()
    case = {"model": study["spec"]["model"], "cluster": study["cluster"], "workload": study["spec"]["workload"]}
    other = case | {"workload": case["workload"] | {_CHANGED: 2 * case["workload"][_CHANGED]}}
    return [
        ("GET best by key", f"/v1/best?target_key={key}"),
        ("GET best by case", f"/v1/best?{_query(case)}"),
        ("GET best nearest", f"/v1/best?{_query(other)}"),
        ("GET study", f"/v1/studies/{template}"),
        ("GET list", "/v1/studies"),
    ]


def _query(case: dict[str, Any]) -> str:
    return str(httpx.QueryParams({name: json.dumps(value) for name, value in case.items()}))


_NUMBERS = """WITH RECURSIVE n(g) AS (SELECT CAST(:low AS INTEGER) UNION ALL SELECT g + 1 FROM n WHERE g < :high)"""
_KEY = "('0000000000000000' || (1000000000000000 + n.g))"
"""32 digits, as every key."""


def _statements() -> list[str]:
    """Copies of the study and of what belongs to it, under new names."""
    new, recommendation = "('stored-' || n.g)", "('rec-stored-' || n.g)"
    return [
        _copy(StudyRow.__table__, {"id": new}, "n", "s.id = :template"),
        _copy(TrialRow.__table__, {"id": None, "study_id": new}, "n", "s.study_id = :template"),
        _copy(
            RunRow.__table__,
            {"id": "('run-' || n.g || '-' || s.position)", "study_id": new, "trial_id": "t2.id"},
            f"n LEFT JOIN trials t1 ON t1.id = s.trial_id LEFT JOIN trials t2 ON t2.study_id = {new} AND t2.number = t1.number",
            "s.study_id = :template",
        ),
        _copy(
            AttemptRow.__table__,
            {"id": None, "run_id": "('run-' || n.g || '-' || r.position)"},
            "runs r CROSS JOIN n",
            "r.study_id = :template AND s.run_id = r.id",
        ),
        _copy(
            RecommendationRow.__table__,
            {"id": recommendation, "study_id": new, "target_key": _KEY},
            "n",
            "s.study_id = :template",
        ),
        _copy(
            TuningTargetRow.__table__,
            # The same model on the same cluster, for another workload.
            {"target_key": _KEY, "target_key_without_fingerprint": _KEY, "recommended_id": recommendation},
            "recommendations c CROSS JOIN n",
            "c.study_id = :template AND s.recommended_id = c.id",
        ),
    ]


def _copy(table: object, changed: dict[str, str | None], joined: str, where: str) -> str:
    assert isinstance(table, Table) and table.metadata is Row.metadata
    columns = [column.name for column in table.columns if changed.get(column.name, "") is not None]
    values = [changed.get(name) or f's."{name}"' for name in columns]
    quoted = ", ".join(f'"{name}"' for name in columns)
    return (
        f"{_NUMBERS} INSERT INTO {table.name} ({quoted}) SELECT {', '.join(values)} "
        f"FROM {table.name} s CROSS JOIN {joined} WHERE {where}"
    )

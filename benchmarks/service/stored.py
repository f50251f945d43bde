"""Fill the database with copies of one finished study, by SQL: what a service has after months."""

import httpx
from sqlalchemy import Table, text

from db.rows import AttemptRow, Row, RunRow, StudyRow, TrialRow
from db.session import Database

_BATCH = 100
"""Studies per transaction."""


def fill(database: Database, template: str, trials: int) -> int:
    """Copy the study until this many trials are stored; returns how many there are."""
    with database.read() as session:
        each = session.execute(text("SELECT count(*) FROM trials WHERE study_id = :id"), {"id": template}).scalar_one()
        now = session.execute(text("SELECT count(*) FROM trials")).scalar_one()
        first = session.execute(text("SELECT count(*) FROM studies")).scalar_one()
    wanted = max(0, -(-(trials - now) // each))
    for start in range(first, first + wanted, _BATCH):
        with database.write() as session:
            scope = {"template": template, "low": start, "high": min(start + _BATCH, first + wanted) - 1}
            for statement in _statements():
                session.execute(text(statement), scope)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    return int(now + wanted * each)


def read_paths(url: str, template: str) -> list[tuple[str, str]]:
    """What a platform asks for: (kind, URL)."""
    paths = {"study": f"/v1/studies/{template}", "study_best": f"/v1/studies/{template}/best", "list": "/v1/studies"}
    described = httpx.get(f"{url}/openapi.json", trust_env=False).json()["paths"]
    if "/v1/best" in described:
        study = httpx.get(f"{url}{paths['study']}", trust_env=False).json()
        if study.get("study_key"):
            paths["best"] = f"/v1/best?study_key={study['study_key']}"
    return [(f"GET {kind}", url + path) for kind, path in paths.items()]


_NUMBERS = """WITH RECURSIVE n(g) AS (SELECT CAST(:low AS INTEGER) UNION ALL SELECT g + 1 FROM n WHERE g < :high)"""


def _statements() -> list[str]:
    """Copies of the study, its trials, runs and attempts, under new names."""
    new = "('stored-' || n.g)"
    return [
        _copy(StudyRow.__table__, {"id": new, "study_key": "('key-' || n.g)"}, "n", "s.id = :template"),
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

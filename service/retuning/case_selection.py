"""Which recommendations a schedule is about.

A case named by its `case_key` stays the same case when the fingerprint, and with it the key, changes.
"""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.schedules import Cases
from shardtune.db.queries import best, schedules
from shardtune.db.tables.best import ServedCaseRow
from shardtune.service.process.context import Context
from shardtune.service.workers import registry


def selected(context: Context, session: Session, project_id: str, cases: Cases) -> list[str]:
    """Keys of the cases a schedule selects now, in order: one per model, workload and cluster.

    Of answers that differ in their fingerprint only, those of machines that are there count; where none is, the newest.
    """
    live = set(registry.live_fingerprints(context, session, project_id))
    by_shape: dict[str, list[ServedCaseRow]] = {}
    for row in schedules.serving_cases(session, project_id):
        if covers(session, row, cases):
            by_shape.setdefault(row.case_key_without_fingerprint, []).append(row)
    return sorted(row.case_key for rows in by_shape.values() for row in _present(rows, live))


def covers(session: Session, row: ServedCaseRow, cases: Cases) -> bool:
    """Whether a selection is about a case."""
    if cases.case_keys:
        named = (best.served(session, row.project_id, key) for key in cases.case_keys)
        return any(
            other is not None and other.case_key_without_fingerprint == row.case_key_without_fingerprint
            for other in named
        )
    if cases.model is None:
        return True
    return row.model_type == cases.model or (row.serving is not None and row.serving.answer.model.name == cases.model)


def _present(rows: Sequence[ServedCaseRow], live: set[str]) -> Sequence[ServedCaseRow]:
    there = [row for row in rows if row.fingerprint_key in live]
    return there or rows[:1]

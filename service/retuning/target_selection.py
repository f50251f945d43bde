"""Which recommendations a schedule is about.

A case named by its `target_key` stays the same case when the fingerprint, and with it the key, changes.
"""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.schedules import Cases
from shardtune.db.queries import best, schedules
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.process.context import Context
from shardtune.service.workers import registry


def selected(context: Context, session: Session, project_id: str, cases: Cases) -> list[str]:
    """Keys of the cases a schedule selects now, in order: one per model, workload and cluster.

    Of answers that differ in their fingerprint only, those of machines that are there count; where none is, the newest.
    """
    live = set(registry.live_fingerprints(context, session, project_id))
    by_shape: dict[str, list[TuningTargetRow]] = {}
    for row in schedules.serving_cases(session, project_id):
        if covers(session, row, cases):
            by_shape.setdefault(row.target_key_without_fingerprint, []).append(row)
    return sorted(row.target_key for rows in by_shape.values() for row in _present(rows, live))


def covers(session: Session, row: TuningTargetRow, cases: Cases) -> bool:
    """Whether a selection is about a case."""
    if cases.target_keys:
        named = (best.served(session, row.project_id, key) for key in cases.target_keys)
        return any(
            other is not None and other.target_key_without_fingerprint == row.target_key_without_fingerprint
            for other in named
        )
    if cases.model is None:
        return True
    return row.model_type == cases.model or (row.serving is not None and row.serving.answer.model.name == cases.model)


def _present(rows: Sequence[TuningTargetRow], live: set[str]) -> Sequence[TuningTargetRow]:
    there = [row for row in rows if row.fingerprint_key in live]
    return there or rows[:1]

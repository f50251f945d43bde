"""Select the recommendations that a schedule covers.

A schedule that names a tuning target by its `target_key` still covers that target when the fingerprint, and with it the
key, changes.
"""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.schedules import TargetSelection
from shardtune.db.queries import best, schedules
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.process.context import Context
from shardtune.service.workers import registry


def select_targets(context: Context, session: Session, project_id: str, selection: TargetSelection) -> list[str]:
    """Keys of the tuning targets that a schedule selects now, in order: one for each model, workload and cluster.

    Recommendations may differ only in their fingerprint (hardware and software versions). Then those are selected
    whose fingerprint a live worker has; if no live worker has any of them, the newest one is.
    """
    live = set(registry.live_fingerprints(context, session, project_id))
    rows_by_target: dict[str, list[TuningTargetRow]] = {}
    for row in schedules.recommended_targets(session, project_id):
        if includes(session, row, selection):
            rows_by_target.setdefault(row.target_key_without_fingerprint, []).append(row)
    return sorted(row.target_key for rows in rows_by_target.values() for row in _present(rows, live))


def includes(session: Session, row: TuningTargetRow, selection: TargetSelection) -> bool:
    """Whether a schedule's selection includes a tuning target (model, workload, cluster)."""
    if selection.target_keys:
        # Compared without fingerprint: the named key may belong to hardware or software that has changed since.
        named_targets = (best.get_target(session, row.project_id, key) for key in selection.target_keys)
        return any(
            named_target is not None
            and named_target.target_key_without_fingerprint == row.target_key_without_fingerprint
            for named_target in named_targets
        )
    if selection.model is None:
        return True
    return row.model_type == selection.model or (
        row.recommended is not None and row.recommended.answer.model.name == selection.model
    )


def _present(rows: Sequence[TuningTargetRow], live: set[str]) -> Sequence[TuningTargetRow]:
    live_rows = [row for row in rows if row.fingerprint_key in live]
    return live_rows or rows[:1]

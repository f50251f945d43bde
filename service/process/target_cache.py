"""Cache of the tuning targets (model, workload, cluster) of recommendations."""

import threading
from collections.abc import Collection

from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.tuning_targets import Flat, TuningTarget
from shardtune.db.queries import best

_MAX_TARGETS = 4096


class TargetCache:
    """Cache of what each recommendation is for: the fields of its tuning target (model, workload, cluster), by the
    recommendation's id.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._fields_by_id: dict[str, Flat] = {}

    def fields_of(self, session: Session, recommendation_ids: Collection[str]) -> dict[str, Flat]:
        """Fields of each recommendation's tuning target (model, workload, cluster), by the recommendation's id. Only
        recommendations that are not cached are read from the database.
        """
        # Never invalidated: a recommendation's target does not change. The nearest recommendation is chosen among many,
        # whose answers would otherwise be read for each question.
        fields_by_id = {
            recommendation_id: fields
            for recommendation_id in recommendation_ids
            if (fields := self._fields_by_id.get(recommendation_id)) is not None
        }
        for row in best.recommendations_by_ids(
            session,
            [recommendation_id for recommendation_id in recommendation_ids if recommendation_id not in fields_by_id],
        ):
            fields_by_id[row.id] = TuningTarget(row.answer.model, row.answer.workload, row.answer.cluster).flat()
        with self._guard:
            self._fields_by_id |= fields_by_id
            while len(self._fields_by_id) > _MAX_TARGETS:
                self._fields_by_id.pop(next(iter(self._fields_by_id)))
        return fields_by_id

"""What recommendations are about, kept in the process: the nearest one is looked for among many, and none ever changes that."""

import threading
from collections.abc import Collection

from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.tuning_targets import Case, Flat
from shardtune.db.queries import best

_MOST = 4096


class KnownTargets:
    """Cases by recommendation."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, Flat] = {}

    def of(self, session: Session, recommendation_ids: Collection[str]) -> dict[str, Flat]:
        """The fields of each recommendation's case, by its id; only those that are not known yet are read."""
        found = {name: case for name in recommendation_ids if (case := self._known.get(name)) is not None}
        for row in best.by_ids(session, [name for name in recommendation_ids if name not in found]):
            found[row.id] = Case(row.answer.model, row.answer.workload, row.answer.cluster).flat()
        with self._guard:
            self._known |= found
            while len(self._known) > _MOST:
                self._known.pop(next(iter(self._known)))
        return found

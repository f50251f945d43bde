"""Runs reserved for the workers that began their block: runs that are compared execute on the same devices."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase
from shardtune.db.queries import trials, workers
from shardtune.db.tables.studies import StudyRow, WorkerRow
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import live_since


class Reservations(NamedTuple):
    """Reserved studies, by study id: studies with a waiting run of a block that has begun."""

    by_other_workers: dict[str, frozenset[str]]
    """Ids of the workers that may take the run, because they began its block and are live."""
    by_asking_worker: frozenset[str]
    """Studies whose block the asking worker itself began."""


def find_reservations(
    context: Context, session: Session, waiting: Sequence[StudyRow], worker: WorkerRow
) -> Reservations:
    """Find reserved studies among those with a waiting run; studies whose run any worker may take are left out."""
    comparing = [study for study in waiting if study.phase is StudyPhase.FINAL_COMPARISON]
    begun_blocks = trials.workers_of_open_blocks(session, [study.id for study in comparing]) if comparing else {}
    by_others = {study_id: ids for study_id, ids in begun_blocks.items() if worker.id not in ids}
    by_asking = frozenset(begun_blocks.keys() - by_others.keys())
    if not by_others:
        return Reservations({}, by_asking)
    # One query for all studies: a waiting worker checks every study that is in its final comparison.
    live = workers.seen_since(session, live_since(context), frozenset[str]().union(*by_others.values()))
    able = {study.id: _live_and_compatible(live, study, by_others.get(study.id, ())) for study in comparing}
    return Reservations({study_id: worker_ids for study_id, worker_ids in able.items() if worker_ids}, by_asking)


def live_among(context: Context, session: Session, study: StudyRow, ids: Collection[str]) -> frozenset[str]:
    """Ids of those workers that are live and can run the study."""
    # The caller has changed rows that are not complete yet; a query would flush them.
    with session.no_autoflush:
        live = workers.seen_since(session, live_since(context), ids)
    return _live_and_compatible(live, study, ids)


def _live_and_compatible(live: Sequence[WorkerRow], study: StudyRow, ids: Collection[str]) -> frozenset[str]:
    return frozenset(worker.id for worker in live if worker.id in ids and compatibility.can_run(worker, study))

"""Runs reserved for the workers that began their comparison block, because the runs that are compared must execute on
the same devices.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.db.queries import trials, workers
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import live_since


class Reservations(NamedTuple):
    """Studies with a waiting run that is reserved for certain workers. These workers have begun the run's comparison
    block, a group of runs that must execute directly after each other on the same devices.
    """

    by_other_workers: dict[str, frozenset[str]]
    """Ids of the only live workers that may take a study's waiting run, because they have begun the run's comparison
    block (runs on the same devices), by study id.
    """
    by_asking_worker: frozenset[str]
    """Ids of the studies whose comparison block (runs on the same devices) the worker that requests work has begun
    itself.
    """


def find_reservations(
    context: Context, session: Session, waiting: Sequence[StudyRow], worker: WorkerRow
) -> Reservations:
    """Find the studies whose waiting run is reserved for certain workers, as opposed to runs that any worker may
    take.
    """
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
    """Return those of the given worker ids whose workers are live, not drained, and can run the study."""
    # The caller has changed rows that are not complete yet; a query would flush them.
    with session.no_autoflush:
        live = workers.seen_since(session, live_since(context), ids)
    return _live_and_compatible(live, study, ids)


def _live_and_compatible(live: Sequence[WorkerRow], study: StudyRow, ids: Collection[str]) -> frozenset[str]:
    # A drained worker still asks, and would be waited for without end: the rest of its block goes to another one.
    able = (worker for worker in live if not worker.is_draining and compatibility.can_run(worker, study))
    return frozenset(worker.id for worker in able if worker.id in ids)

"""Runs that wait for the workers which began their block: what is compared with each other runs on the same devices."""

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
    """Of studies where a run of a begun block waits, which is compared with others on the same devices; by the study's id."""

    others: dict[str, frozenset[str]]
    """Ids of the workers that alone may have it, as they began its block and can go on."""
    own: frozenset[str]
    """Where the worker that asks began the block."""


def reservations(context: Context, session: Session, waiting: Sequence[StudyRow], worker: WorkerRow) -> Reservations:
    """What is reserved in studies where a run waits. Those whose run anybody may have are left out."""
    promoting = [study for study in waiting if study.phase is StudyPhase.FINAL_COMPARISON]
    begun = trials.begun_blocks(session, [study.id for study in promoting]) if promoting else {}
    others = {study_id: ids for study_id, ids in begun.items() if worker.id not in ids}
    own = frozenset(begun.keys() - others.keys())
    if not others:
        return Reservations({}, own)
    # Asked once for all of them: a worker that waits looks at as many studies as are being confirmed.
    live = workers.seen_since(session, live_since(context), frozenset[str]().union(*others.values()))
    found = {study.id: _able(live, study, others.get(study.id, ())) for study in promoting}
    return Reservations({study_id: worker_ids for study_id, worker_ids in found.items() if worker_ids}, own)


def live_among(context: Context, session: Session, study: StudyRow, ids: Collection[str]) -> frozenset[str]:
    """Those of these workers that are live and can run the study."""
    with session.no_autoflush:
        live = workers.seen_since(session, live_since(context), ids)
    return _able(live, study, ids)


def _able(live: Sequence[WorkerRow], study: StudyRow, ids: Collection[str]) -> frozenset[str]:
    return frozenset(one.id for one in live if one.id in ids and compatibility.may_run(one, study))

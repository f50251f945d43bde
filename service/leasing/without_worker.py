"""Complete studies whose answer is known and for whose optional runs no live worker is left, so that nobody asks for them."""

from collections.abc import Collection
from functools import partial

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES, TrialState
from shardtune.db.queries import studies
from shardtune.db.queries.studies import OpenStudy
from shardtune.db.tables.studies import StudyRow
from shardtune.service.leasing.optional_runs import with_obstacle
from shardtune.service.lifecycle import advance
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import has_worker_for


def complete_stranded(context: Context, stranded_before: Collection[str]) -> frozenset[str]:
    """Complete every user's study that has its answer and waits for optional runs which no live worker can execute, if
    that was so in the round before, too. Returns the ids of the studies that no live worker can bring to their end now.

    `stranded_before`: ids of such studies in the round before.
    """
    with context.db.read() as session:
        comparing = [item.study for item in studies.studies_with_work(session) if _may_have_answer(item)]
        stranded = frozenset(study.id for study in comparing if not _has_worker(context, session, study))
    sum_unlocked(sorted(stranded.intersection(stranded_before)), partial(_complete, context), str)
    return stranded


def _may_have_answer(item: OpenStudy) -> bool:
    is_comparing = item.study.phase is StudyPhase.FINAL_COMPARISON and not item.is_background
    return is_comparing and TrialState.RUNNING not in item.open_states


def _complete(context: Context, study_id: str) -> bool:
    with context.db.read() as session:
        study = studies.get(session, study_id)
        if study is None or _has_worker(context, session, study):
            return False
        snapshot = advance.read_snapshot(context, session, study)
        for purpose in OPTIONAL_PURPOSES:
            snapshot = with_obstacle(context, session, study, snapshot, purpose, None)
    # A study whose answer is not known yet plans a run or waits, which changes nothing.
    return advance.advance(context, study_id, snapshot)


def _has_worker(context: Context, session: Session, study: StudyRow) -> bool:
    return any(has_worker_for(context, session, study, purpose) for purpose in OPTIONAL_PURPOSES)


async def keep_completing(context: Context) -> None:
    """Complete studies that no worker can bring to their end, at intervals until cancelled."""
    stranded = frozenset[str]()

    async def step() -> None:
        nonlocal stranded
        # A round that fails is none: after an outage of the database, workers must have had time to ask, too.
        stranded_before, stranded = stranded, frozenset()
        stranded = await run_in_threadpool(complete_stranded, context, stranded_before)

    # Two rounds take as long as a silent worker counts as live. So its workers have time to ask after an outage of the
    # service, and those of a study that was paused have time to start.
    await run_every(context.settings.worker_live_s / 2, completing_studies_without_workers=step)

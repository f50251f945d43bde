"""Complete studies whose answer is known and for whose optional runs no live worker is left, so that nobody asks for them."""

from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES, TrialState
from shardtune.db.queries import studies
from shardtune.db.queries.studies import OpenStudy
from shardtune.service.leasing.optional_runs import with_obstacle
from shardtune.service.lifecycle import advance
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import has_worker_for


def complete_answered(context: Context) -> int:
    """Complete every user's study that has its answer and waits for optional runs which no live worker can execute.
    Returns the number of studies that went on.
    """
    with context.db.read() as session:
        comparing = [item.study.id for item in studies.studies_with_work(session) if _may_have_answer(item)]
    return sum_unlocked(comparing, partial(_complete, context), str)


def _may_have_answer(item: OpenStudy) -> bool:
    is_comparing = item.study.phase is StudyPhase.FINAL_COMPARISON and not item.is_background
    return is_comparing and TrialState.RUNNING not in item.open_states


def _complete(context: Context, study_id: str) -> bool:
    with context.db.read() as session:
        study = studies.get(session, study_id)
        if study is None or any(has_worker_for(context, session, study, purpose) for purpose in OPTIONAL_PURPOSES):
            return False
        snapshot = advance.read_snapshot(context, session, study)
        for purpose in OPTIONAL_PURPOSES:
            snapshot = with_obstacle(context, session, study, snapshot, purpose, None)
    # A study whose answer is not known yet plans a run or waits, which changes nothing.
    return advance.advance(context, study_id, snapshot)


async def keep_completing(context: Context) -> None:
    """Complete studies that no worker can bring to their end, at intervals until cancelled."""

    async def step() -> None:
        await run_in_threadpool(complete_answered, context)

    # The first round comes so late, too: after an outage of the service, its workers must have had time to ask.
    await run_every(context.settings.worker_live_s, completing_studies_without_workers=step)

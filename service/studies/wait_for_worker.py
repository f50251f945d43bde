"""Start waiting studies when a suitable worker registers, and fail studies that have waited too long."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.queries import studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.http.errors import Invalid
from shardtune.service.lifecycle import transitions
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, offered_models, registry, study_clusters, target_rungs

log = logging.getLogger(__name__)


async def keep_beginning(context: Context) -> None:
    """Start or fail studies that wait for a worker, at intervals until cancelled. The interval is that at which
    expired leases are looked for.
    """

    async def step() -> None:
        await run_in_threadpool(begin_or_fail_waiting, context)

    await run_every(context.settings.sweep_s, looking_for_workers_of_waiting_studies=step)


def begin_or_fail_waiting(context: Context) -> int:
    """Start the waiting studies that have a suitable worker, and fail those that have waited too long; returns how many
    were started or failed.
    """
    with context.db.read() as session:
        waiting = studies.waiting(session)
    return sum_unlocked(waiting, partial(_begin_or_fail, context), lambda row: row.id)


def wait_deadline(row: StudyRow) -> datetime:
    """Time at which a waiting study fails because no suitable worker has registered."""
    return row.created_at + timedelta(seconds=row.spec.wait_for_worker_s or 0.0)


def no_worker_reason(waited_s: float, causes: Sequence[str] = ()) -> StudyReason:
    """Reason stored with a study that failed because no suitable worker registered within its waiting time. `causes`
    says why registered workers with suitable hardware cannot run the study.
    """
    text = (
        f"no worker with its cluster came within {waited_s:g} s; start one there with `shardtune worker`, "
        "or create the study again with a longer wait_for_worker_s"
    )
    return StudyReason(code=StudyReasonCode.NO_WORKER, text=text, details="; ".join(causes)[:500])


def _begin_or_fail(context: Context, waiting_row: StudyRow) -> bool:
    now = context.now()
    with context.db.write() as session:
        # Locked: if several replicas look at the same moment, one of them begins it.
        row = studies.lock(session, waiting_row.id)
        if row.state is not StudyState.WAITING:
            return False
        live = registry.live_workers(context, session, row.project_id)
        suitable = [worker for worker in live if compatibility.can_begin_waiting_study(worker, row)]
        if suitable:
            try:
                offered_models.check_model(row.spec.model, suitable[0])
            except Invalid as error:
                rejected = StudyReason(code=StudyReasonCode.MODEL_REJECTED, text=str(error))
                transitions.end_study(session, row, StudyState.FAILED, rejected, now)
                return True
            present = study_clusters.with_host_memory(
                row.cluster, suitable[0], is_named=isinstance(row.spec.cluster, str)
            )
            of_target = target_rungs.notes_of_begun(row.spec, present, suitable[0].offer.measured)
            row.notes = (*row.notes, *study_clusters.host_memory_notes(row.cluster, present), *of_target)
            row.cluster = present
            transitions.begin_study(row, now)
            log.info("study begins: worker %s is there", suitable[0].name, extra={"study": row.id})
            return True
        if now < wait_deadline(row):
            return False
        causes = [f"{worker.name} {cause}" for worker in live if (cause := compatibility.waiting_obstacle(worker, row))]
        reason = no_worker_reason(row.spec.wait_for_worker_s or 0.0, causes)
        transitions.end_study(session, row, StudyState.FAILED, reason, now)
        log.warning(reason.text, extra={"study": row.id})
        return True

"""Decide whether something prevents an optional run of a study now: its sustained run (one long run of its winner after the
verdict), a run that compares recipes, or a rehearsal. The study then completes without it, because its answer is known and
must not wait.
"""

from dataclasses import replace

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES, RunPurpose
from shardtune.db.queries import leases
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.service.leasing import lease_message
from shardtune.service.leasing.claim_results import WorkRequest
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import has_worker_for
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle

# A change of the study wakes idle workers, so that one with the time takes the run within seconds.
_OTHERS_ASK_S = 30.0
"""Seconds that other live workers have to take an optional run that the asking worker has no time for. How long they
have left is not known."""


def with_obstacle(
    context: Context,
    session: Session,
    study: StudyRow,
    snapshot: StudySnapshot,
    purpose: RunPurpose,
    asking: WorkRequest | None,
) -> StudySnapshot:
    """Copy of a study's snapshot that says whether optional runs of a purpose can take place now. `asking`: request of the
    worker that would execute them; None if no worker asks.
    """
    is_able = has_worker_for(context, session, study, purpose)
    if is_able and asking is not None:
        run = leases.next_waiting(session, study.id)
        if run is not None and is_too_long_for_worker(context, session, study, run, asking):
            return replace(snapshot, sustained_obstacle=SustainedObstacle.WORKER_ENDS)
    if purpose == RunPurpose.RECIPE:
        return replace(snapshot, has_recipe_worker=is_able)
    if purpose == RunPurpose.REHEARSAL:
        return replace(snapshot, has_rehearsal_worker=is_able)
    return replace(snapshot, sustained_obstacle=None if is_able else SustainedObstacle.NO_WORKER)


def is_too_long_for_worker(
    context: Context, session: Session, study: StudyRow, run: RunRow, asking: WorkRequest
) -> bool:
    """Return whether a waiting run is an optional one that the study does without, because the asking worker must end
    before the run would and no other live worker took it.
    """
    if run.purpose not in OPTIONAL_PURPOSES or asking.ends_in_s is None:
        return False
    if lease_message.foreseen_s(context, study, run) <= asking.ends_in_s:
        return False
    # This worker must be there still when the others have had their time, or nobody would complete the study.
    waited_s = (context.now() - run.created_at).total_seconds()
    if waited_s >= _OTHERS_ASK_S or asking.ends_in_s < 2 * _OTHERS_ASK_S:
        return True
    # The caller may have added the run just now; a query would flush it.
    with session.no_autoflush:
        return not has_worker_for(context, session, study, RunPurpose(run.purpose), besides=asking.session)

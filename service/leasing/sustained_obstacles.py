"""Decide whether something prevents a study's sustained run (one long run of its winner after the verdict) now. The study
then completes without it, because its answer is known and must not wait for an optional run.
"""

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.service.leasing import lease_message
from shardtune.service.leasing.claim_results import WorkRequest
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import has_worker_for
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle

# A change of the study wakes idle workers, so that one with the time takes the run within seconds.
_OTHERS_ASK_S = 30.0
"""Seconds that other live workers have to take a sustained run that the asking worker has no time for. How long they
have left is not known."""


def find_obstacle(context: Context, session: Session, study: StudyRow, asking: WorkRequest) -> SustainedObstacle | None:
    """Return what prevents the sustained run of a study in its final comparison; None if nothing does."""
    if not has_worker_for(context, session, study, RunPurpose.SUSTAINED):
        return SustainedObstacle.NO_WORKER
    run = leases.next_waiting(session, study.id)
    is_too_long = run is not None and is_too_long_for_worker(context, session, study, run, asking)
    return SustainedObstacle.WORKER_ENDS if is_too_long else None


def is_too_long_for_worker(
    context: Context, session: Session, study: StudyRow, run: RunRow, asking: WorkRequest
) -> bool:
    """Return whether a waiting run is a sustained one that the study does without, because the asking worker must end
    before the run would and no other live worker took it.
    """
    if run.purpose != RunPurpose.SUSTAINED or asking.ends_in_s is None:
        return False
    if lease_message.foreseen_s(context, study, run) <= asking.ends_in_s:
        return False
    # This worker must be there still when the others have had their time, or nobody would complete the study.
    waited_s = (context.now() - run.created_at).total_seconds()
    if waited_s >= _OTHERS_ASK_S or asking.ends_in_s < 2 * _OTHERS_ASK_S:
        return True
    # The caller may have added the run just now; a query would flush it.
    with session.no_autoflush:
        return not has_worker_for(context, session, study, RunPurpose.SUSTAINED, besides=asking.session)

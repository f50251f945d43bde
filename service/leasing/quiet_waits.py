"""Waits for a quiet machine: the time that a study's runs may still wait, counted over all of its runs.

A run's progress carries the seconds that its attempts have waited. So the count survives a worker or a service that is
killed, up to one heartbeat.
"""

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.leases import QuietWait
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import fingerprints, leases
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.tuner.verdict import disturbance

_MEASURING = (RunPurpose.SEARCH, RunPurpose.VALIDATION, RunPurpose.SUSTAINED, RunPurpose.RECIPE)
"""Purposes of the runs that wait for a quiet machine: their speeds decide a verdict or a comparison of recipes
(numerical formats and optimizers), or the answer states them.
"""


def order(session: Session, study: StudyRow, run: RunRow) -> QuietWait | None:
    """Instruction for a worker to wait for a quiet machine before it starts a run; None if the study does not ask for
    this, or has used up its waiting time.
    """
    allowed_s = study.spec.wait_for_quiet_s
    if allowed_s is None or run.purpose not in _MEASURING or run.fingerprint_key is None:
        return None
    left_s = allowed_s - leases.waited_s(session, study.id)
    cores = fingerprints.values(session, [run.fingerprint_key])[run.fingerprint_key].cpu_count
    if left_s <= 0 or cores is None:
        return None
    return QuietWait(
        most_s=left_s,
        most_foreign_cores=disturbance.most_foreign_cores(study.cluster, cores),
        waited_s=waited_so_far(run.progress) or 0.0,
    )


def waited_so_far(progress: Progress | None) -> float | None:
    """Seconds for which the attempts at a run have waited until no other program used the machine; None if they did
    not wait.
    """
    return progress.waited_s if progress is not None else None

"""Report the result of a study on the target to the study whose projection it confirms or changes."""

import logging
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.db.queries import studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning.target_comparison import comparing_study, difference
from shardtune.tuner.projection.confirmation import confirmed

log = logging.getLogger(__name__)


def report_confirmation(session: Session, study: StudyRow, now: datetime) -> None:
    """Store what a study found on the target in the projection that it names. The caller has locked the study.

    Retunes and canaries copy a study's request, and repeat other configurations: they report nothing.
    """
    named = study.spec.confirms
    if named is None or study.result is None or study.system_study is not None:
        return
    existing = studies.get(session, named)
    if existing is None or existing.project_id != study.project_id or existing.deleted_at is not None:
        return
    original = studies.lock(session, named)
    projection = None if original.result is None else original.result.projection
    if original.result is None or projection is None or not projection.runners_up:
        log.warning("the study to confirm has no projection", extra={"study": study.id, "confirms": named})
        return
    # The study may have been extended since, and its projection may have other choices now.
    changed = difference(study.spec, study.cluster, comparing_study(named, original.spec, projection))
    if changed is not None:
        log.warning("the projection to confirm has changed: %s", changed, extra={"study": study.id, "confirms": named})
        return
    reported = confirmed(projection, study.id, study.result, now)
    original.result = original.result.model_copy(update={"projection": reported})
    original.version += 1
    log.info("projection %s on the target", reported.verdict, extra={"study": named, "confirmed_by": study.id})

"""Complete a study that its user cancels when its answer is known and only optional runs are left: the sustained run (one
long run of the winner after the verdict), runs that compare recipes, and rehearsals.
"""

from dataclasses import replace
from typing import NamedTuple

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES
from shardtune.db.queries import leases, studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.lifecycle import advance
from shardtune.service.lifecycle.target_projection import with_projection
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import Complete
from shardtune.service.process.context import Context
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle


class KnownAnswer(NamedTuple):
    """Step that completes a study without its remaining optional runs, and the snapshot for which it was planned."""

    step: Complete
    snapshot: StudySnapshot


def find(context: Context, study_id: str) -> KnownAnswer | None:
    """Return the step that completes a study whose answer is known and that has only optional runs left; None for other
    studies.
    """
    with context.db.read() as session:
        study = studies.get(session, study_id)
        if study is None or study.phase is not StudyPhase.FINAL_COMPARISON or study.system_study is not None:
            return None
        snapshot = advance.read_snapshot(context, session, study)
        if not _has_only_optional_runs(session, study):
            return None
    # The end of the study cancels the open run. A paused study plans nothing, but may be cancelled.
    snapshot = replace(
        snapshot.without_open_optional_runs(),
        state=StudyState.RUNNING,
        sustained_obstacle=SustainedObstacle.CANCELLED,
    )
    step = with_projection(context, snapshot, advance.plan_step(context, snapshot, may_ask=False))
    return KnownAnswer(step, snapshot) if isinstance(step, Complete) else None


def _has_only_optional_runs(session: Session, study: StudyRow) -> bool:
    """Whether every unfinished run of a study is one that its answer does not wait for."""
    return all(run.purpose in OPTIONAL_PURPOSES for run in leases.open_runs(session, study.id))


def complete(context: Context, session: Session, study: StudyRow, known: KnownAnswer) -> bool:
    """Complete a study with its known answer, unless the study has changed since the answer was found; returns whether
    it was completed. The caller has locked the study, which is open.
    """
    # An optional run that was added meanwhile changes no answer.
    is_same = study.comparison_round == known.snapshot.comparison_number and _has_only_optional_runs(session, study)
    if is_same and study.phase is StudyPhase.FINAL_COMPARISON:
        advance.apply_step(context, session, study, known.step, known.snapshot)
        return True
    return False

"""Complete a study that its user cancels when its answer is known and only optional runs are left: the sustained run (one
long run of the winner after the verdict), runs that compare recipes, and rehearsals for the target.
"""

from dataclasses import replace
from typing import NamedTuple

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases, studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.lifecycle import advance
from shardtune.service.lifecycle.target_projection import with_projection
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import Complete
from shardtune.service.process.context import Context
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle

_OPTIONAL = (RunPurpose.SUSTAINED, RunPurpose.RECIPE, RunPurpose.REHEARSAL)
"""Purposes of the runs that follow a known answer and do not change it."""


class KnownAnswer(NamedTuple):
    """Step that completes a study without further optional runs, and the snapshot for which it was planned."""

    step: Complete
    snapshot: StudySnapshot


def find(context: Context, study_id: str) -> KnownAnswer | None:
    """Return the step that completes a study of which only optional runs are left; None for other studies."""
    with context.db.read() as session:
        study = studies.get(session, study_id)
        if study is None or study.phase is not StudyPhase.FINAL_COMPARISON or study.system_study is not None:
            return None
        snapshot = advance.read_snapshot(context, session, study)
    ended = _without_open_runs(snapshot)
    is_in_optional_run = ended != snapshot
    if snapshot.has_open_run and not is_in_optional_run:
        return None
    # The end of the study cancels the open run. A paused study plans nothing, but may be cancelled.
    snapshot = replace(
        ended,
        state=StudyState.RUNNING,
        has_waiting_run=False,
        has_open_run=False,
        sustained_obstacle=SustainedObstacle.CANCELLED,
    )
    step = with_projection(context, snapshot, advance.plan_step(context, snapshot, may_ask=False))
    if not isinstance(step, Complete) or not (is_in_optional_run or step.result.sustained is not None):
        return None
    return KnownAnswer(step, snapshot)


def _without_open_runs(snapshot: StudySnapshot) -> StudySnapshot:
    """Copy of a study's snapshot without its waiting and running optional runs."""
    return replace(
        snapshot,
        sustained_runs=tuple(run for run in snapshot.sustained_runs if not run.state.is_open),
        recipe_runs=tuple(run for run in snapshot.recipe_runs if not run.state.is_open),
        rehearsal_runs=tuple(run for run in snapshot.rehearsal_runs if not run.state.is_open),
    )


def complete(context: Context, session: Session, study: StudyRow, known: KnownAnswer) -> bool:
    """Complete a study with its known answer, unless the study has changed since the answer was found; returns whether
    it was completed. The caller has locked the study, which is open.
    """
    # An optional run that was added meanwhile changes no answer.
    is_same = study.comparison_round == known.snapshot.comparison_number and all(
        run.purpose in _OPTIONAL for run in leases.open_runs(session, study.id)
    )
    if is_same and study.phase is StudyPhase.FINAL_COMPARISON:
        advance.apply_step(context, session, study, known.step, known.snapshot)
        return True
    return False

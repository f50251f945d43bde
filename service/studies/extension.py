"""Raise the budget of a study: its search continues from the stored trials, or its final comparison with more pairs.

The present result stays until a new result replaces it.
"""

import logging
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, MOST_PAIRS, Budget
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.studies.study_request import MOST_QUIET_WAIT_S
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import best, leases, studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.access import quotas
from shardtune.service.http import etags
from shardtune.service.http.errors import Conflict, invalid, invalid_from_value_error
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.lifecycle import advance, transitions
from shardtune.service.planning import study_plan, study_snapshot
from shardtune.service.planning.final_steps import budget_for_pairs, next_confirmation, pairs_so_far
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import NewValidationRun
from shardtune.service.process.context import Context
from shardtune.service.studies.create_and_read import get_study, study_views
from shardtune.service.workers import compatibility, registry
from shardtune.tuner.search import stopping
from shardtune.tuner.verdict import budget_left
from shardtune.tuner.verdict.budget_left import StudySpent

log = logging.getLogger(__name__)

_ENDED = (StudyState.COMPLETE, StudyState.FAILED)
_LIMITS_REACHED = (StudyReasonCode.GPU_SECONDS_USED, StudyReasonCode.WALL_SECONDS_USED)
"""Reasons for which more trials alone continue no search: the rest of the limit was for the final comparison."""


def extend(
    context: Context, study_id: str, more: Extension, idempotency: IdempotencyKey = NO_KEY, if_match: str | None = None
) -> Study:
    """Raise the budget of a study; a study that has ended continues.

    Raises:
        Conflict: the study was cancelled, has no model summary or was created by the service, or the larger budget
            changes nothing.
        Invalid: the budget has no such limit, or no live worker could continue it.
        TooMany: running again would break a quota of its project.
        PreconditionFailed: the study has changed since the sender read it.
    """
    now = context.now()
    with idempotency.write(context) as session:
        study_row = get_study(context, session, study_id)
        has_ended = study_row.state in _ENDED
        # Quota first: the project is locked before the study (note [lock order]).
        if has_ended:
            quotas.check_study_quota(session, study_row.project_id, now)
        row = studies.lock(session, study_id)
        etags.check(if_match, study_views(session, [row])[0])
        _check_extensible(row, has_ended)
        if has_ended:
            _check_worker(context, session, row)
        _raise_budget(session, row, more, now)
        if has_ended:
            row.phase = StudyPhase.FINAL_COMPARISON if row.phase is StudyPhase.DONE else row.phase
            if row.state is StudyState.FAILED:
                # The reason of the failure would stay beside the answer of a study that completes.
                row.explain(None)
            # Deleted and restored, it may find that another study was started for its target; only one may be open.
            if best.is_resolved_by_another(session, row):
                row.resolve_key = None
            _leave_out_failed_sustained_runs(session, row)
            transitions.reopen_study(row)
        log.info("study extended: %s", row.spec.budget, extra={"study": study_id})
        session.flush()
        study = idempotency.answer(session, study_views(session, [row])[0])
    advance.advance(context, study_id)
    return study


def _leave_out_failed_sustained_runs(session: Session, row: StudyRow) -> None:
    """Let an extended study make its sustained run (one long run of the winner after the verdict) again, if it failed."""
    for run in leases.failed_runs(session, row.id, RunPurpose.SUSTAINED):
        # Such a run has no number of a comparison as long as it counts.
        run.comparison_round = row.comparison_round


def why_no_trials(study: Study, more: int, now: datetime) -> str | None:
    """Reason why a study that has ended would still run no further trials if its budget were raised by `more` trials;
    None if it would run some.
    """
    if study.reason_code is StudyReasonCode.ALL_TRIED:
        return stopping.ALL_TRIED.text
    trials, wall_seconds = sum(study.trials.values()), (now - (study.started_at or study.created_at)).total_seconds()
    spent = (study.gpu_seconds, wall_seconds)
    try:
        budget = stopping.extend_budget(study.spec.budget, Extension(add_trials=more), trials, *spent)
    except ValueError:
        return "the study has about as many trials as one may have"
    used_up = stopping.used_up(budget, trials, *spent)
    if used_up is None and study.reason_code in _LIMITS_REACHED:
        return study.reason
    return used_up.sentence if used_up else _why_no_room(study, budget, StudySpent(*spent))


def _why_no_room(study: Study, budget: Budget, spent: StudySpent) -> str | None:
    """Reason why another trial would leave too little of a budget for a new final comparison, by the runs of the last one;
    None if there is room, or the study has run none."""
    compared = study.result.final_comparison if study.result is not None else None
    if compared is None or not compared.runs:
        return None
    ranks = study.cluster.world_size
    needed_s = (1 + 2 * FEWEST_PAIRS) * compared.gpu_seconds / compared.runs / ranks
    short = budget_left.shortage(budget, spent, needed_s, ranks)
    return short and f"{short.limit} leaves too little for more trials and another comparison"


def takes_pairs(study: StudyRow, more: int) -> bool:
    """Whether `more` pairs may be added to a study that has no verdict yet. A live worker would run them."""
    if study.system_study is not None or study.deleted_at is not None or study.state is StudyState.CANCELLED:
        return False
    if study.spec.budget.max_pairs + more > MOST_PAIRS:
        return False
    # While an extension runs, added pairs are of the comparison that it ends with.
    if study.state.is_open:
        return True
    # A study that failed has no verdict of its newest comparison, whatever an earlier one decided.
    verdict = study.result.newest_verdict if study.state is StudyState.COMPLETE and study.result is not None else None
    is_decided = verdict in (Verdict.CONFIRMED, Verdict.NOT_FASTER)
    return study.final_comparison is not None and study.final_comparison.needs_runs and not is_decided


def _instead_of_pairs(row: StudyRow) -> str:
    """Remedy for a study that can run no more pairs."""
    is_searched = row.reason_code == StudyReasonCode.ALL_TRIED
    return "clone it with another space" if is_searched else "give add_trials, or clone it"


def _check_extensible(row: StudyRow, had_ended: bool) -> None:
    if row.system_study is not None:
        # Its retune is decided by the study's result; nothing would read a later one.
        owner = (
            f"retune {row.system_study.retune_id}"
            if row.system_study.retune_id is not None
            else f"a {row.system_study.kind}"
        )
        raise Conflict(
            "made_by_service",
            f"study {row.id} belongs to {owner}, which decides what it runs; clone it and extend the clone",
        )
    if row.deleted_at is not None:
        raise Conflict("study_deleted", f"study {row.id} was deleted; POST /v1/studies/{row.id}:undelete first")
    if row.state is StudyState.CANCELLED:
        raise Conflict("study_ended", f"study {row.id} was cancelled; clone it to begin anew")
    # The state was read before the lock; whether a quota applies depends on it.
    if had_ended != (row.state in _ENDED):
        raise Conflict("study_ended", f"study {row.id} became {row.state.value} just now; send the request again")
    if had_ended and row.model_summary is None:
        raise Conflict(
            "study_ended", f"study {row.id} failed before its search: {row.reason}; remove the cause and clone it"
        )


def has_worker(context: Context, session: Session, row: StudyRow) -> bool:
    """Whether a live worker can execute the runs of a study that is extended."""
    return any(compatibility.can_run(worker, row) for worker in registry.live_workers(context, session, row.project_id))


def _check_worker(context: Context, session: Session, row: StudyRow) -> None:
    live = registry.live_workers(context, session, row.project_id)
    if any(compatibility.can_run(worker, row) for worker in live):
        return
    rejections = [
        compatibility.rejection_reason(worker, row).text
        for worker in live
        if compatibility.fingerprint_differs(worker, row)
    ]
    reason = "; ".join(rejections) or "no live worker has its cluster, or allows its model"
    text = f"study_id ({row.id}) cannot go on: {reason}; start such a worker (shardtune worker)"
    raise invalid("study_id", row.id, text, code="no_worker")


def _raise_budget(session: Session, row: StudyRow, more: Extension, now: datetime) -> None:
    """Store the larger budget of a study, and return the study to the search if the added budget is for the search
    and not for the final comparison (paired runs that decide).
    """
    snapshot = study_snapshot.read_study(session, row)
    spent = StudySpent(snapshot.gpu_seconds, (now - snapshot.started_at).total_seconds())
    is_searching = row.phase in (StudyPhase.MODEL_SUMMARY, StudyPhase.SEARCH)
    trials = len(snapshot.history)
    # Without a limit in trials, the search ends at the default number; added trials count from there.
    if is_searching and row.spec.budget.max_trials is None:
        trials = max(trials, row.spec.budget.most_trials)
    try:
        budget = stopping.extend_budget(row.spec.budget, more, trials, *spent)
    except ValueError as error:
        raise invalid_from_value_error("", error) from error
    if more.searches:
        _check_searches_on(row, snapshot, budget, spent, is_searching)
    else:
        budget = _add_pairs(row, snapshot, budget, more, spent)
    wait_s = more.wait_for_quiet_s
    if wait_s is not None:
        wait_s = min(MOST_QUIET_WAIT_S, (row.spec.wait_for_quiet_s or 0.0) + wait_s)
        row.spec = row.spec.model_copy(update={"wait_for_quiet_s": wait_s})
    row.spec = row.spec.model_copy(update={"budget": budget})
    row.version += 1
    if more.searches and not is_searching:
        _return_to_search(session, row, now)


def _check_searches_on(
    row: StudyRow, snapshot: StudySnapshot, budget: Budget, spent: StudySpent, is_searching: bool
) -> None:
    """Check that the search of a study goes on with its larger budget.

    Raises:
        Conflict: it has tried everything, or another limit of the budget is reached.
    """
    if not is_searching and row.reason_code == StudyReasonCode.ALL_TRIED:
        remedy = "give add_pairs, or clone it" if takes_pairs(row, 1) else "clone it"
        raise Conflict("nothing_to_extend", f"{stopping.ALL_TRIED.text} in study {row.id}; {remedy} with another space")
    reason = stopping.stop_reason(snapshot.history, budget, *spent)
    if reason is None and not is_searching:
        # The next comparison begins anew: the pairs of the last one do not count for it.
        extended = replace(snapshot, spec=snapshot.spec.model_copy(update={"budget": budget}))
        reason = study_plan.why_rest_is_kept(extended, spent)
    if reason is not None:
        raise Conflict(
            "nothing_to_extend",
            f"study {row.id} would not continue its search: {reason.sentence}; raise that limit, too",
        )


def _add_pairs(row: StudyRow, snapshot: StudySnapshot, budget: Budget, more: Extension, spent: StudySpent) -> Budget:
    """Add pairs to the present or last final comparison of a study. Return the budget, whose limits of GPU-seconds and
    time have room for them.

    Raises:
        Conflict: the study would run none of them.
    """
    if row.phase is StudyPhase.DONE:
        _add_to_ended_pairs(row, snapshot, more)
    else:
        _add_to_running_pairs(row, more)
    if row.final_comparison is not None and row.final_comparison.needs_runs and more.add_pairs is not None:
        budget = budget_for_pairs(
            snapshot, row.final_comparison, budget, more.add_pairs, spent, more.wait_for_quiet_s or 0.0
        )
    if row.phase is StudyPhase.DONE:
        _check_goes_on(row, snapshot, budget, more)
    return budget


def _add_to_ended_pairs(row: StudyRow, snapshot: StudySnapshot, more: Extension) -> None:
    """Let the final comparison of a study that has ended run the added pairs.

    Raises:
        Conflict: the study has no final comparison or no candidate, or its newest comparison has confirmed one.
    """
    if row.state is StudyState.FAILED and row.final_comparison is None and row.result is not None:
        raise Conflict(
            "nothing_to_extend",
            f"study {row.id} left its final comparison when trials were added, and failed before another one; give add_trials",
        )
    if row.final_comparison is None or not row.final_comparison.needs_runs:
        raise Conflict(
            "nothing_to_extend",
            f"study {row.id} has no candidate to pair with the baseline; {_instead_of_pairs(row)}",
        )
    # A confirmed answer of an earlier comparison may stay where the newest one decided nothing: pairs go on with that.
    if row.state is StudyState.COMPLETE and row.result is not None and row.result.newest_verdict is Verdict.CONFIRMED:
        raise Conflict("nothing_to_extend", f"the verdict of study {row.id} is confirmed; more pairs would not be run")
    # Those already asked for may not all have run, where the study failed before.
    if more.add_pairs is not None:
        earlier = max(pairs_so_far(snapshot, row.final_comparison), row.final_comparison.fewest_pairs)
        row.final_comparison = replace(row.final_comparison, fewest_pairs=earlier + more.add_pairs)


def _add_to_running_pairs(row: StudyRow, more: Extension) -> None:
    """Let a final comparison to which pairs were added before, and which still runs, run the newly added pairs, too."""
    if row.final_comparison is not None and row.final_comparison.fewest_pairs and more.add_pairs is not None:
        fewest_pairs = row.final_comparison.fewest_pairs + more.add_pairs
        row.final_comparison = replace(row.final_comparison, fewest_pairs=fewest_pairs)


def _check_goes_on(row: StudyRow, snapshot: StudySnapshot, budget: Budget, more: Extension) -> None:
    """Check that the final comparison of a complete study goes on with its larger budget.

    Raises:
        Conflict: the pairs that ran decide the verdict, so the study would end again at once.
    """
    # A study that failed is tried again, whatever its pairs say: it has no verdict of its own.
    if row.state is not StudyState.COMPLETE or row.result is None or row.final_comparison is None:
        return
    spec = snapshot.spec.model_copy(update={"budget": budget})
    # A trace that is still recorded delays the study, but changes nothing of its comparison.
    extended = replace(snapshot, spec=spec, has_open_run=False, has_waiting_run=False)
    if not isinstance(next_confirmation(extended, row.final_comparison, 0.0), NewValidationRun):
        raise Conflict(
            "nothing_to_extend",
            f"add_pairs ({more.add_pairs}) would run no pair: those that ran settle the comparison of study {row.id} "
            f"(verdict {row.result.newest_verdict.value}); {_instead_of_pairs(row)}",
        )


def _return_to_search(session: Session, row: StudyRow, now: datetime) -> None:
    """Return a study from the final comparison (paired runs that decide) to the search. Validation runs that execute
    now may finish, but do not count for the next final comparison.
    """
    for run in leases.open_runs(session, row.id):
        if run.state is TrialState.WAITING and run.purpose != RunPurpose.SEARCH:
            transitions.run(run, TrialState.CANCELLED, now)
    row.phase, row.final_comparison = StudyPhase.SEARCH, None
    row.explain(None)
    # A higher round separates the runs of the next comparison from those of this one.
    row.comparison_round += 1

"""Progress of a study: trials, validation runs, what runs now and how long it takes."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import FinalComparison, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import leases, overview
from shardtune.db.tables.studies import StudyRow
from shardtune.service.pages.views import best
from shardtune.service.wording import study_words
from shardtune.service.wording.progress import activity_words, time_left
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK


@dataclass(frozen=True)
class ProgressFact:
    """Line of a study's progress, with a name, a text and, if the total is known, a progress bar."""

    name: str
    text: str
    explained: str = ""
    """Explanation of what the line's name means; empty without an explanation."""
    part: tuple[int, int] | None = None
    """Number of completed units and total number of units, for the progress bar; None if the line has no bar."""


@dataclass(frozen=True)
class StudyProgress:
    """Progress of a study."""

    done: int
    """Number of trials that have ended without being cancelled."""
    cancelled: int
    activity: str
    """Description of what the study does at present; empty for a study that does not run."""
    summary: str
    """Summary of an ended study in one sentence."""
    facts: tuple[ProgressFact, ...]


def study_progress(session: Session, row: StudyRow, study: Study, now: datetime) -> StudyProgress:
    """Return the progress of a study."""
    done, runs = best.finished(study), best.runs_by_study(session, [study])[study.study_id]
    end = study.finished_at or now
    elapsed_s = (end - (study.started_at or study.created_at)).total_seconds()
    is_running = study.state is StudyState.RUNNING
    cancelled = study.trials.get(TrialState.CANCELLED, 0)
    activity = _activity(session, study, runs.validation_runs) if is_running else ""
    trials = counted(done, "trial")
    took, cost = study_words.duration(elapsed_s), study_words.duration(study.gpu_seconds)
    facts = [
        _trials(study, done, cancelled),
        *_validation_runs(study, runs.validation_runs),
        *([ProgressFact("Now", activity)] if activity else ()),
        *(_time_left(session, row, study, time_left.estimate(study, runs, elapsed_s)) if is_running else ()),
        ProgressFact("Running for" if is_running else "Open for" if study.state.is_open else "Took", took),
        ProgressFact("GPU time", _limited(cost, study.spec.budget.max_gpu_seconds)),
        *_reason(study),
    ]
    return StudyProgress(done, cancelled, activity, f"{trials} in {took}, {cost} of GPU time.", tuple(facts))


def _trials(study: Study, done: int, cancelled: int) -> ProgressFact:
    # A search that ended by itself does not use the rest of its budget: 9 of 9, not 9 of 40.
    total = done if study.state is StudyState.COMPLETE else max(study.spec.budget.most_trials, done)
    is_limit = study.spec.budget.max_trials is None and study.state.is_open
    text = f"{done} of {'at most ' if is_limit else ''}{total}" if total else f"{done}"
    return ProgressFact("Trials", text + (f", {cancelled} cancelled" if cancelled else ""), part=(done, total))


def _validation_runs(study: Study, complete: int) -> tuple[ProgressFact, ...]:
    if not complete and study.phase is not StudyPhase.FINAL_COMPARISON:
        return ()
    most, result = activity_words.most_validation_runs(study), study.result
    text = activity_words.of_most_validation_runs(study, complete)
    # A confirmed result that stays after an extension was decided by earlier runs than these.
    is_decided = result is not None and result.newest_verdict not in (Verdict.UNDECIDED, Verdict.TOO_BUSY)
    if is_decided and study.state is StudyState.COMPLETE and complete < most:
        text += ": enough for the verdict"
    spent = result.final_comparison if result is not None else None
    # While an extension compares again, the result is still that of the comparison before.
    if spent is not None and spent.number == study.final_comparison:
        text += _in_pairs(spent, complete)
    explained = "Paired runs of candidate and baseline in new processes; only they decide the verdict"
    return (ProgressFact("Validation runs", text, explained, (complete, max(complete, most))),)


def _in_pairs(spent: FinalComparison, complete: int) -> str:
    """Return which of the complete validation runs are in pairs that count, and the purpose of the others."""
    counting, uneven = 2 * spent.pairs, 2 * spent.uneven_pairs
    if complete <= counting:
        return ""
    text = f"; {counting} in pairs that count"
    text += f"; {uneven} in pairs that were left out" if uneven else ""
    return text + ("; the others came before the pairs, or lack a partner" if complete > counting + uneven else "")


def _time_left(session: Session, row: StudyRow, study: Study, estimate: str) -> tuple[ProgressFact, ...]:
    if not estimate:
        return ()
    rivals = overview.count_running(session, row.project_id) - 1
    if rivals and study.system_study is not None:
        estimate += " of measuring, once a worker is free of other studies"
    elif rivals:
        others = "another study shares" if rivals == 1 else f"{rivals} other studies share"
        estimate += f", longer while {others} the workers"
    return (ProgressFact("Time left", estimate),)


def _limited(spent: str, limit_s: float | None) -> str:
    return spent if limit_s is None else f"{spent} of {study_words.duration(limit_s)}"


def _reason(study: Study) -> tuple[ProgressFact, ...]:
    if study.reason is None or not (study.result is not None or study.state.is_open):
        return ()
    has_answer = study.result is not None and study.state is not StudyState.FAILED
    # An extended search that goes on has a reason only while it waits for a worker.
    is_searching = study.state.is_open and study.phase is StudyPhase.SEARCH
    return (ProgressFact("Search ended" if has_answer and not is_searching else "Note", study.reason),)


def _activity(session: Session, study: Study, confirmed: int) -> str:
    if study.phase is StudyPhase.MODEL_SUMMARY:
        return "counting the model's parameters and FLOPs"
    running = [
        run for run in leases.open_runs(session, study.study_id) if run.state is TrialState.RUNNING and run.trial
    ]
    if not running:
        return "waiting for a worker"
    # Several workers may run trials at once; the newest run is the one to show.
    run = running[-1]
    assert run.trial is not None
    where = f"trial {run.trial.number}: {activity_words.describe_step(run.progress)}"
    if run.purpose == RunPurpose.RESUME_CHECK:
        return f"resume check of the winner, {where}"
    if run.purpose == RunPurpose.SUSTAINED:
        return f"sustained run of the winner, {where}"
    if run.purpose == RunPurpose.REHEARSAL:
        return f"rehearsing the projection of trial {run.trial.number} at the target's number of ranks"
    if run.purpose == RunPurpose.RECIPE:
        return f"recipes beside the answer, {where}"
    if run.comparison_block == WHOLE_STEP_BLOCK:
        return f"timing whole steps, {where}"
    if run.purpose == RunPurpose.VALIDATION:
        return f"{activity_words.validation_run(study, confirmed + 1)}, {where}"
    return where

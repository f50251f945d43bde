"""Values of the home page: one row for each model, workload and cluster that has an answer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.study_state import OPEN_STUDY_STATES, StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import OPEN_TRIAL_STATES, RunPurpose, TrialState
from shardtune.db.listing import Page
from shardtune.db.queries import offered_hardware, overview, studies
from shardtune.db.queries.offered_hardware import OfferedMachine
from shardtune.db.queries.overview import ComparedValues, RunCosts
from shardtune.db.tables.studies import StudyRow
from shardtune.service.pages.views import freshness, purpose, words
from shardtune.service.pages.views.freshness import StudyFreshness
from shardtune.service.pages.views.purpose import Purpose
from shardtune.service.pages.views.recommendation import Recommended, of_studies
from shardtune.service.studies import from_rows
from shardtune.service.wording import cluster_words
from shardtune.service.wording.progress import time_left
from shardtune.service.wording.progress.compared_pairs import BlockRun, count_pairs
from shardtune.service.wording.progress.time_left import RunCounts
from shardtune.tuner.objective import available_gib
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK

PAGE = 25


@dataclass(frozen=True)
class StudyLine:
    """Row for one tuning target: its recommendation or, without a recommendation, the answer of its newest study."""

    study: Study
    cluster: str
    workload: str
    best: Contender
    peak_gib: float | None
    capacity_gib: float
    """Memory in GiB that training may use on one rank."""
    freshness: StudyFreshness
    recommended: Recommended | None


@dataclass(frozen=True)
class RunningRow:
    """Row for a study that has not ended, with its progress."""

    study: Study
    cluster: str
    workload: str
    state_tone: str
    purpose: Purpose
    doing: str
    """Description of the activity and the remaining time: `confirming, validation run 3 of at most 14 · about 5 min
    left`."""
    done: int
    total: int | None
    tone: str
    sentence: str


@dataclass(frozen=True)
class Home:
    """All values of the page."""

    rows: tuple[StudyLine, ...]
    total: int
    running: tuple[RunningRow, ...]
    devices: tuple[str, ...]
    has_workers: bool
    has_studies: bool


def home(session: Session, project_id: str | None, text: str, device: str | None, page: Page, now: datetime) -> Home:
    """Return the values of the home page: the rows that match the filters, and the studies that have not ended."""
    machines = offered_hardware.machines(session, project_id)
    ids, total = overview.best_ids(session, project_id, text, device, page)
    answered = read_models(session, overview.by_ids(session, ids))
    active, _ = overview.studies(session, project_id, "", OPEN_STUDY_STATES, Page("age", descending=True, limit=6))
    # The recommendations of the whole page at once, not one query per row.
    recommended = of_studies(session, ids)
    rows = tuple(_best_row(study, machines, recommended.get(study.study_id)) for study in answered)
    return Home(
        rows=rows,
        total=total,
        running=running_rows(session, active, now),
        devices=tuple(overview.devices(session, project_id)),
        has_workers=bool(machines),
        has_studies=overview.has_studies(session, project_id),
    )


def read_models(session: Session, rows: Sequence[StudyRow]) -> list[Study]:
    """Convert database rows to studies. Two queries count the trials and the rejected configurations of all studies
    together."""
    ids = [row.id for row in rows]
    counts, rejected = studies.trial_counts(session, ids), studies.rejection_counts(session, ids)
    return [from_rows.study_from_row(row, counts.get(row.id, {}), rejected.get(row.id, 0)) for row in rows]


def running_rows(session: Session, rows: Sequence[StudyRow], now: datetime) -> tuple[RunningRow, ...]:
    """Return studies with their progress."""
    open_studies = read_models(session, rows)
    purposes = purpose.of_studies(session, open_studies)
    run_counts = runs_by_study(session, [study for study in open_studies if study.state is StudyState.RUNNING])
    return tuple(
        _running_row(study, purposes[study.study_id], run_counts.get(study.study_id), now) for study in open_studies
    )


def runs_by_study(session: Session, open_studies: Sequence[Study]) -> dict[str, RunCounts]:
    """Count the runs of each study and their durations, by study id, to estimate the studies' remaining time."""
    # Whole steps are timed after the verdict: they are no runs of the comparison.
    costs = overview.run_costs(session, [study.study_id for study in open_studies], WHOLE_STEP_BLOCK)
    comparing = [study.study_id for study in open_studies if study.phase is StudyPhase.FINAL_COMPARISON]
    open_runs = overview.open_runs(session, comparing)
    compared = overview.compared_runs(session, comparing, WHOLE_STEP_BLOCK)
    return {
        study.study_id: _count_runs(
            study, costs[study.study_id], open_runs.get(study.study_id, ()), compared.get(study.study_id, ())
        )
        for study in open_studies
    }


def _count_runs(
    study: Study,
    costs: Mapping[tuple[RunPurpose, int], RunCosts],
    open_runs: Collection[tuple[RunPurpose, int | None]],
    compared: Sequence[ComparedValues],
) -> RunCounts:
    search, validation = costs.get((RunPurpose.SEARCH, 0)), costs.get((RunPurpose.VALIDATION, study.final_comparison))
    recipe, sustained = costs.get((RunPurpose.RECIPE, study.final_comparison)), costs.get((RunPurpose.SUSTAINED, 0))
    world = study.cluster.world_size
    # The same estimate as `time_left.count_runs`, from sums in SQL: the list must not load every trial.
    return RunCounts(
        finished=finished(study),
        shortest_search_s=search.shortest / world if search else None,
        validation_runs=validation.runs if validation else 0,
        mean_validation_s=validation.mean / world if validation else None,
        recipe_runs=recipe.runs if recipe else 0,
        sustained_runs=sustained.runs if sustained else 0,
        mean_chosen_s=search.mean_chosen / world if search and search.mean_chosen else None,
        repeats_per_run=search.repeats if search else 0.0,
        # After an extension, ended runs of the earlier answer say nothing of the present comparison.
        has_later_run=(study.result is None and bool(sustained or costs.get((RunPurpose.RESUME_CHECK, 0))))
        or any(
            time_left.follows_comparison(purpose, is_whole_step=block == WHOLE_STEP_BLOCK)
            for purpose, block in open_runs
        ),
        is_rehearsing=any(purpose == RunPurpose.REHEARSAL for purpose, _ in open_runs),
        pairs=count_pairs(
            [BlockRun(*values) for values in compared],
            is_over=any(purpose != RunPurpose.VALIDATION or block == WHOLE_STEP_BLOCK for purpose, block in open_runs),
        ),
    )


def _running_row(study: Study, why: Purpose, runs: RunCounts | None, now: datetime) -> RunningRow:
    tone, sentence = words.verdict(study, why)
    return RunningRow(
        study=study,
        cluster=cluster_words.cluster_with_memory(study.cluster),
        workload=words.workload(study.spec.workload),
        state_tone=words.STATE_TONES[study.state],
        purpose=why,
        doing=_activity(study, runs, now) if runs is not None else "",
        done=finished(study),
        total=study.spec.budget.max_trials,
        tone=tone,
        sentence=sentence,
    )


def finished(study: Study) -> int:
    """Count the trials that have ended, without those that were cancelled together with the study."""
    return sum(
        count for state, count in study.trials.items() if state not in (*OPEN_TRIAL_STATES, TrialState.CANCELLED)
    )


def _activity(study: Study, runs: RunCounts, now: datetime) -> str:
    remaining = time_left.estimate(study, runs, (now - (study.started_at or study.created_at)).total_seconds())
    return words.phase(study, runs.validation_runs) + (f" · {remaining} left" if remaining else "")


def answer(study: Study) -> Contender | None:
    """Return the study's best configuration; while the study has no result, return the best one so far."""
    return study.result.best if study.result else study.best_so_far


def contender_peak(contender: Contender) -> float | None:
    """Return the peak memory in GiB that the memory limit applies to: reserved memory if it was measured, else
    allocated memory."""
    return contender.peak_allocated_gib if contender.peak_reserved_gib is None else contender.peak_reserved_gib


def _best_row(study: Study, machines: Sequence[OfferedMachine], recommended: Recommended | None) -> StudyLine:
    if recommended is not None and recommended.state == "recommended":
        study = study.model_copy(update={"result": recommended.result})
    assert study.result is not None
    best = study.result.best
    # A retune may have replaced the study's own result: the row shows what training jobs get.
    return StudyLine(
        study=study,
        cluster=cluster_words.cluster_with_memory(study.cluster),
        workload=words.workload(study.spec.workload),
        best=best,
        peak_gib=contender_peak(best),
        capacity_gib=available_gib(study.cluster, study.spec.objective),
        freshness=freshness.of(study, machines, recommended.stale_fields if recommended else ()),
        recommended=recommended,
    )

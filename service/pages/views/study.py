"""Values of a study's page: its progress, its answer with the reasons to trust it, and its trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.insights import Importance, ParetoPoint
from shardtune.api_schemas.studies.study import Study, StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.listing import Page
from shardtune.db.queries import leases, overview, trial_points, trials, workers
from shardtune.db.queries.trial_points import TrialFilter, TrialPoint
from shardtune.db.tables.studies import StudyRow
from shardtune.service.pages.charts.interval import Interval, interval
from shardtune.service.pages.charts.parallel import Parallel, parallel
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.charts.search import best_so_far, limit_peak_gib, speed_against_memory
from shardtune.service.pages.views import best, freshness, purpose, target_speed, words
from shardtune.service.pages.views.expected_speed import Expected, expected
from shardtune.service.pages.views.freshness import StudyFreshness
from shardtune.service.pages.views.prediction_accuracy import Predicted, predicted
from shardtune.service.pages.views.purpose import Purpose
from shardtune.service.pages.views.recommendation import Recommended, of_study
from shardtune.service.studies import insights
from shardtune.service.studies.views import trial_view
from shardtune.service.wording import cluster_words, disambiguate, study_words, time_left
from shardtune.service.wording.result_runs import result_runs
from shardtune.service.wording.trust import Trust, trust
from shardtune.tuner.objective import available_gib
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.space.legal_values import Flat

PAGE = 50
_FRESH_TONES = {"fresh": "good", "stale": "bad", "unchecked": "quiet"}
_MOST_CHARTED = 2_000
"""Maximum number of trials in the charts, newest first; more trials are rare and do not change the charts' shape."""


@dataclass(frozen=True)
class StudyProgress:
    """Progress of a study."""

    done: int
    cancelled: int
    total: int
    is_open_ended: bool
    """Whether the total is an upper limit that the search usually does not reach."""
    confirmed: int
    validation_runs: int
    activity: str
    remaining: str
    rivals: int
    """Number of other running studies, which may share the workers."""
    elapsed_s: float


@dataclass(frozen=True)
class TrialLine:
    """One row of the trials table."""

    point: TrialPoint
    config: TrialConfig
    name: str
    """Description, different from every other trial's that differs in a knob."""
    peak_gib: float | None
    tone: str
    reason: str
    of_best: float | None
    """Speed as a fraction of the fastest feasible trial's."""


@dataclass(frozen=True)
class StudyContext:
    """All values of the page."""

    study: Study
    purpose: Purpose
    disturbed: str
    """Number of disturbed search runs in words; empty if none was."""
    cluster: str
    memory: str
    workload: str
    state_tone: str
    tone: str
    sentence: str
    details: str
    """Details of the study's failure; else empty."""
    changes: str
    """Knobs that the best changes relative to the baseline."""
    best_peak_gib: float | None
    progress: StudyProgress
    trust: tuple[Trust, ...]
    freshness: StudyFreshness
    verdict_chart: Interval | None
    plots: tuple[Plot, ...]
    parallel: Parallel | None
    predicted: Predicted | None
    expected: Expected | None
    front: tuple[ParetoPoint, ...]
    """The Pareto front as a table, for readers who cannot use the chart."""
    importance: Importance
    lines: tuple[TrialLine, ...]
    matching: int
    failures: tuple[tuple[str, str, str, int], ...]
    """Tone, kind, description and count of each kind of failure."""
    rejections: tuple[str, ...]
    limit_gib: float
    best_number: int | None
    backends: frozenset[str]
    """Backends of the measured trials, for the legend."""
    recommended: Recommended | None
    since: Plot | None
    """Speed of the tuning target at each of its measurements."""
    has_unusable: bool
    """Whether some measured trials do not count."""


def study_page(session: Session, row: StudyRow, chosen: TrialFilter, page: Page, now: datetime) -> StudyContext:
    """Return the values of a study's page, with one page of its trials."""
    study = best.read_models(session, [row])[0]
    points = trial_points.of_study(session, row.id, TrialFilter(), Page("number", True, _MOST_CHARTED))
    # The query returns the newest first, for its limit; charts read from left to right.
    points.sort(key=lambda point: point.number)
    answer = best.answer(study)
    best_number = answer.trial_number if answer else None
    limit = available_gib(study.cluster, study.spec.objective)
    link = f"/studies/{study.study_id}/trials"
    why = purpose.of_studies(session, [study])[study.study_id]
    tone, sentence = words.verdict(study, why.outcome)
    plots = (best_so_far(points, link), speed_against_memory(points, limit, link, best_number))
    configs = [TrialConfig.model_validate(point.config) for point in points]
    flat = [flatten(config) for config in configs]
    # Without pruned and infeasible trials, which confirm nothing about an answer.
    complete = [config for config, p in zip(configs, points, strict=True) if p.state == TrialState.COMPLETE]
    recommended = of_study(session, row.id)
    fresh = freshness.of(
        study, workers.machines(session, row.project_id), recommended.stale_fields if recommended else ()
    )
    fastest = max((p.tokens_per_s_per_gpu or 0 for p in points if p.state == TrialState.COMPLETE), default=0.0)
    shown = trial_points.of_study(session, row.id, chosen, page)
    rejected = [r.value for r in trials.rejections(session, row.id)] if study.rejected else []
    return StudyContext(
        study=study,
        purpose=why,
        cluster=cluster_words.cluster(study.cluster),
        memory=words.cluster_memory(study.cluster),
        workload=words.workload(study.spec.workload),
        state_tone=words.STATE_TONES[study.state],
        tone=tone,
        sentence=sentence,
        details=words.split_reason(study)[1] if study.state is StudyState.FAILED else "",
        changes=disambiguate.changed_knobs(study.result) if study.result else "",
        best_peak_gib=best.contender_peak(answer) if answer else None,
        progress=_progress(session, row, study, now),
        trust=(*_trust(session, study, complete), Trust(_FRESH_TONES[fresh.word], fresh.why)) if study.result else (),
        disturbed=_disturbed(study, points),
        freshness=fresh,
        verdict_chart=interval(study.result.speedup) if study.result and study.result.speedup else None,
        plots=tuple(plot for plot in plots if plot is not None),
        parallel=parallel(points, flat, link, best_number),
        predicted=predicted(points, link),
        expected=expected(points, link),
        front=tuple(insights.front_of([p for p in points if p.state.is_feasible])),
        importance=_importance(points, flat),
        lines=_trial_lines(shown, fastest),
        matching=trial_points.count_trials(session, row.id, chosen),
        failures=tuple(_failure(*entry) for entry in trial_points.failure_counts(session, row.id)),
        rejections=tuple(study_words.closest_rejections(rejected)),
        limit_gib=limit,
        best_number=best_number,
        recommended=recommended,
        since=target_speed.chart(session, row.id) if recommended else None,
        backends=frozenset(str(p.config["strategy"]["kind"]) for p in points if p.tokens_per_s_per_gpu),
        has_unusable=any(limit_peak_gib(p) is not None and not p.state.is_feasible for p in points),
    )


def _trust(session: Session, study: Study, complete: Sequence[TrialConfig]) -> tuple[Trust, ...]:
    assert study.result is not None
    rows = trials.with_validation_runs(session, study.study_id, study.result.best.trial_number)
    return trust(study, result_runs(study, study.result, [trial_view(row) for row in rows], complete))


def _disturbed(study: Study, points: Sequence[TrialPoint]) -> str:
    if study.result is not None and not study.state.is_open:
        return study_words.disturbed_searches(study.result)
    measured = [point for point in points if point.state.is_feasible and point.tokens_per_s_per_gpu is not None]
    return study_words.count_disturbed(sum(point.disturbed is not None for point in measured), len(measured))


def _progress(session: Session, row: StudyRow, study: Study, now: datetime) -> StudyProgress:
    done = best.finished(study)
    runs = best.runs_by_study(session, [study])[study.study_id]
    confirmed = runs.validation_runs
    end = study.finished_at or now
    elapsed = (end - (study.started_at or study.created_at)).total_seconds()
    running = study.state is StudyState.RUNNING
    return StudyProgress(
        done=done,
        cancelled=study.trials.get(TrialState.CANCELLED, 0),
        # A search that ended by itself does not use the rest of its budget: 9 of 9, not 9 of 40.
        total=done if study.state is StudyState.COMPLETE else max(study.spec.budget.most_trials, done),
        is_open_ended=study.spec.budget.max_trials is None,
        confirmed=confirmed,
        validation_runs=study_words.most_validation_runs(study),
        activity=_activity(session, study, confirmed) if running else "",
        remaining=time_left.estimate(study, runs, elapsed) if running else "",
        rivals=overview.count_running(session, row.project_id) - 1 if running else 0,
        elapsed_s=elapsed,
    )


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
    where = f"trial {run.trial.number}: {study_words.describe_step(run.progress)}"
    if run.purpose == RunPurpose.RESUME_CHECK:
        return f"resume check of the winner, {where}"
    if study.phase is StudyPhase.FINAL_COMPARISON:
        return f"{study_words.validation_position(study, confirmed)}, {where}"
    return where


def _importance(points: Sequence[TrialPoint], flat: Sequence[Flat]) -> Importance:
    # A failed trial's speed is unknown, not slow: as the slowest it would make its knobs look important.
    ran = [(p, table) for p, table in zip(points, flat, strict=True) if p.state.is_feasible]
    return insights.importance_of([p for p, _ in ran], [table for _, table in ran])


def _failure(state: str, kind: str, number: int) -> tuple[str, str, str, int]:
    return words.TRIAL_TONES[TrialState(state)], kind, words.FAILURES.get(kind, kind), number


def _trial_lines(shown: Sequence[TrialPoint], fastest: float) -> tuple[TrialLine, ...]:
    configs = [TrialConfig.model_validate(point.config) for point in shown]
    names = disambiguate.distinct_descriptions(configs)
    return tuple(_trial_line(p, c, name, fastest) for p, c, name in zip(shown, configs, names, strict=True))


def _trial_line(point: TrialPoint, config: TrialConfig, name: str, fastest: float) -> TrialLine:
    reason = ""
    if point.failure_kind is not None:
        reason = f"{words.FAILURES.get(point.failure_kind, point.failure_kind)}: {point.failure_message}"
    feasible = point.tokens_per_s_per_gpu is not None and point.state.is_feasible
    return TrialLine(
        point=point,
        config=config,
        name=name,
        peak_gib=limit_peak_gib(point),
        tone=words.TRIAL_TONES[TrialState(point.state)],
        reason=reason,
        of_best=(point.tokens_per_s_per_gpu or 0) / fastest if feasible and fastest else None,
    )

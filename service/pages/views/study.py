"""Values of a study's page: its progress, its answer with the reasons to trust it, and its trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.insights import Importance, ParetoPoint
from shardtune.api_schemas.studies.study import Study, StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.listing import Page
from shardtune.db.queries import offered_hardware, trial_points, trials
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
from shardtune.service.pages.views.study_sections.failures import Setback, failure_kinds, setbacks
from shardtune.service.pages.views.study_sections.next_step import NextStep, next_step
from shardtune.service.pages.views.study_sections.progress import StudyProgress, study_progress
from shardtune.service.pages.views.study_sections.projection import ProjectionSection, projection_section
from shardtune.service.pages.views.study_sections.recommendation_box import RecommendationBox, recommendation_box
from shardtune.service.pages.views.study_sections.request_notes import request_notes
from shardtune.service.pages.views.study_sections.study_log import LogLine, study_log
from shardtune.service.studies import insights
from shardtune.service.studies.views import trial_view
from shardtune.service.wording import cluster_words, disambiguate, recipe_words, study_words
from shardtune.service.wording.reasons import Reasons, reasons
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
    best_title: str
    best_peak_gib: float | None
    progress: StudyProgress
    reasons: Reasons | None
    """Reasons for and against the answer; None without an answer."""
    next_step: NextStep | None
    log: tuple[LogLine, ...]
    read_as: tuple[str, ...]
    """Notes about how the service read the study's request: the baseline file, the precision, keys without effect."""
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
    setbacks: tuple[Setback, ...]
    failure_kinds: tuple[tuple[str, str], ...]
    """Kind and description of each failure, for the filter of trials."""
    recipes: tuple[tuple[str, tuple[Trust, ...]], ...]
    """Name of each recipe that the study considered, and what its runs say."""
    rejections: tuple[str, ...]
    limit_gib: float
    best_number: int | None
    backends: frozenset[str]
    """Backends of the measured trials, for the legend."""
    projection: ProjectionSection | None
    """Answer for the study's target; None without one."""
    recommended: Recommended | None
    box: RecommendationBox | None
    """Words of the recommendation's box."""
    since: Plot | None
    """Speed of the tuning target at each of its measurements."""
    has_unusable: bool
    """Whether the charts leave out measured trials, such as those that train differently."""


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
    tone, sentence = words.verdict(study, why)
    plots = (best_so_far(points, link), speed_against_memory(points, limit, link, best_number))
    configs = [TrialConfig.model_validate(point.config) for point in points]
    flat = [flatten(config) for config in configs]
    # Without pruned and infeasible trials, which confirm nothing about an answer.
    complete = [config for config, p in zip(configs, points, strict=True) if p.state == TrialState.COMPLETE]
    recommended = of_study(session, row.id)
    fresh = freshness.of(
        study, offered_hardware.machines(session, row.project_id), recommended.stale_fields if recommended else ()
    )
    fastest = max((p.tokens_per_s_per_gpu or 0 for p in points if p.state == TrialState.COMPLETE), default=0.0)
    reasons_to_trust = _reasons(session, study, complete, fresh, sentence) if study.result else None
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
        details=study.reason_details[:1].upper() + study.reason_details[1:] if study.state is StudyState.FAILED else "",
        changes=disambiguate.changed_knobs(study.result) if study.result else "",
        best_title=words.best_title(study, recommended is not None and recommended.state == "recommended"),
        best_peak_gib=best.contender_peak(answer) if answer else None,
        progress=study_progress(session, row, study, now),
        reasons=reasons_to_trust,
        next_step=next_step(study, recommended, fresh, now),
        log=study_log(session, row.id, link, study.system_study is not None),
        read_as=request_notes(study),
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
        setbacks=setbacks(session, study, points),
        failure_kinds=failure_kinds(session, row.id),
        recipes=tuple((recipe.name, recipe_words.lines(recipe)) for recipe in study.result.recipes)
        if study.result
        else (),
        rejections=tuple(study_words.closest_rejections(rejected)),
        limit_gib=limit,
        best_number=best_number,
        projection=projection_section(study),
        recommended=recommended,
        box=recommendation_box(recommended, answer) if recommended and answer else None,
        since=target_speed.chart(session, row.id) if recommended else None,
        backends=frozenset(str(p.config["strategy"]["kind"]) for p in points if p.tokens_per_s_per_gpu),
        has_unusable=any(limit_peak_gib(p) is not None and not p.state.is_feasible for p in points),
    )


def _reasons(
    session: Session, study: Study, complete: Sequence[TrialConfig], fresh: StudyFreshness, sentence: str
) -> Reasons:
    assert study.result is not None
    rows = trials.with_validation_runs(session, study.study_id, study.result.best.trial_number)
    stored = result_runs(study, study.result, [trial_view(row) for row in rows], complete)
    return reasons((*trust(study, stored), Trust(_FRESH_TONES[fresh.word], fresh.why)), sentence)


def _importance(points: Sequence[TrialPoint], flat: Sequence[Flat]) -> Importance:
    # A failed trial's speed is unknown, not slow: as the slowest it would make its knobs look important.
    ran = [(p, table) for p, table in zip(points, flat, strict=True) if p.state.is_feasible]
    return insights.importance_of([p for p, _ in ran], [table for _, table in ran])


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

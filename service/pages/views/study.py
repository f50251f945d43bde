"""Values of a study's page: its progress, its answer with the reasons to trust it, and its trials."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.listing import Page
from shardtune.db.queries import offered_hardware, trial_points, trials
from shardtune.db.queries.trial_points import TrialFilter, TrialPoint
from shardtune.db.tables.studies import StudyRow
from shardtune.service.pages.charts.interval import Interval, interval
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.views import best, freshness, purpose, target_speed, words
from shardtune.service.pages.views.freshness import StudyFreshness
from shardtune.service.pages.views.plans.study_link import plan_address
from shardtune.service.pages.views.purpose import Purpose
from shardtune.service.pages.views.recommendation import Recommended, of_study
from shardtune.service.pages.views.study_sections import search_charts
from shardtune.service.pages.views.study_sections.failures import (
    Setback,
    failure_kinds,
    lacks_host_memory,
    least_needed_gib,
    rejections,
    setbacks,
)
from shardtune.service.pages.views.study_sections.next_step import NextStep, next_step
from shardtune.service.pages.views.study_sections.no_answer import NoAnswer, no_answer
from shardtune.service.pages.views.study_sections.progress import StudyProgress, study_progress
from shardtune.service.pages.views.study_sections.projection import ProjectionSection, projection_section
from shardtune.service.pages.views.study_sections.recommendation_box import RecommendationBox, recommendation_box
from shardtune.service.pages.views.study_sections.request_notes import request_notes
from shardtune.service.pages.views.study_sections.search_charts import SearchCharts
from shardtune.service.pages.views.study_sections.study_log import LogLine, study_log
from shardtune.service.pages.views.study_sections.trial_table import TrialLine, trial_lines
from shardtune.service.studies.from_rows import trial_from_row
from shardtune.service.wording import cluster_words, disambiguate, recipe_words, study_words
from shardtune.service.wording.answers.how_measured import speed_reasons
from shardtune.service.wording.answers.trust_line import Trust
from shardtune.service.wording.reasons import Reasons, reasons
from shardtune.service.wording.result_runs import result_runs
from shardtune.service.wording.trust import trust
from shardtune.tuner.objective import available_gib

PAGE = 50
_FRESH_TONES = {"fresh": "good", "stale": "bad", "unchecked": "quiet"}


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
    failure: NoAnswer
    """Description of why the study failed; empty for a study that did not fail."""
    changes: str
    """Text that lists the knobs in which the best configuration differs from the baseline."""
    best_title: str
    baseline_origin: str
    """Origin of the baseline: the user, a documented default, or the search; empty without a result."""
    best_peak_gib: float | None
    progress: StudyProgress
    reasons: Reasons | None
    """Reasons for and against believing the answer; None without an answer."""
    next_step: NextStep | None
    log: tuple[LogLine, ...]
    read_as: tuple[str, ...]
    """Notes about how the service interpreted the study's request: the baseline file, the precision, and keys without
    effect."""
    freshness: StudyFreshness
    verdict_chart: Interval | None
    search: SearchCharts
    lines: tuple[TrialLine, ...]
    matching: int
    setbacks: tuple[Setback, ...]
    failure_kinds: tuple[tuple[str, str], ...]
    """Kinds of failures that occurred in the study, each with its description; the list of trials can be filtered by
    them."""
    recipes: tuple[tuple[str, tuple[Trust, ...]], ...]
    """Name of each recipe (another precision or optimizer, float8) that the study compared, and lines about its loss
    and speed."""
    rejections: tuple[str, ...]
    limit_gib: float
    best_number: int | None
    projection: ProjectionSection | None
    """Answer projected to the study's target (a larger cluster); None without a target."""
    recommended: Recommended | None
    box: RecommendationBox | None
    """Words of the recommendation's box."""
    plan: str
    """Address of a plan with this study's speeds; empty if no plan can use them."""
    since: Plot | None
    """Chart of the tuning target's speed at each of its measurements."""


def study_page(session: Session, row: StudyRow, chosen: TrialFilter, page: Page, now: datetime) -> StudyContext:
    """Return the values that a study's page shows, including one page of the list of its trials."""
    study = best.read_models(session, [row])[0]
    points = search_charts.charted_points(session, row.id)
    answer = best.answer(study)
    best_number = answer.trial_number if answer else None
    limit = available_gib(study.cluster, study.spec.objective)
    link = f"/studies/{study.study_id}/trials"
    why = purpose.of_studies(session, [study])[study.study_id]
    tone, sentence = words.verdict(study, why)
    kinds = failure_kinds(session, row.id)
    rejected = rejections(session, study)
    needed, is_host_short = least_needed_gib(rejected, limit), lacks_host_memory(rejected, limit)
    failure = no_answer(study, [kind for kind, _ in kinds], limit, needed, is_host_short)
    recommended = of_study(session, row.id)
    fresh = freshness.of(
        study, offered_hardware.machines(session, row.project_id), recommended.stale_fields if recommended else ()
    )
    result = study.result
    return StudyContext(
        study=study,
        purpose=why,
        cluster=cluster_words.cluster(study.cluster),
        memory=words.cluster_memory(study.cluster),
        workload=words.workload(study.spec.workload),
        state_tone=words.STATE_TONES[study.state],
        tone=tone,
        sentence=failure.sentence or sentence,
        failure=failure,
        changes=disambiguate.changed_knobs(result) if result else "",
        best_title=words.best_title(study, recommended is not None and recommended.state == "recommended"),
        baseline_origin=_baseline_origin(study, points),
        best_peak_gib=best.contender_peak(answer) if answer else None,
        progress=study_progress(session, row, study, now),
        reasons=_reasons(session, study, points, fresh, words.stated_subjects(study, why)) if result else None,
        next_step=next_step(study, recommended, fresh, now),
        log=study_log(session, row.id, link, study.system_study is not None),
        read_as=request_notes(study),
        freshness=fresh,
        verdict_chart=interval(result.speedup) if result and result.speedup else None,
        search=search_charts.search_charts(points, limit, link, best_number),
        lines=trial_lines(trial_points.of_study(session, row.id, chosen, page), points),
        matching=trial_points.count_trials(session, row.id, chosen),
        setbacks=setbacks(session, study, points),
        failure_kinds=kinds,
        recipes=tuple((recipe.name, recipe_words.lines(recipe)) for recipe in result.recipes) if result else (),
        rejections=tuple(study_words.closest_rejections(rejected)),
        limit_gib=limit,
        best_number=best_number,
        projection=projection_section(study),
        recommended=recommended,
        box=recommendation_box(recommended, answer) if recommended and answer else None,
        plan=plan_address(study),
        since=target_speed.chart(session, row.id) if recommended else None,
    )


def _reasons(
    session: Session, study: Study, points: Sequence[TrialPoint], fresh: StudyFreshness, stated: Collection[str]
) -> Reasons:
    assert study.result is not None
    # Without pruned and infeasible trials, which confirm nothing about an answer.
    complete = [TrialConfig.model_validate(p.config) for p in points if p.state == TrialState.COMPLETE]
    rows = trials.with_validation_runs(session, study.study_id, study.result.best.trial_number)
    stored = result_runs(study, study.result, [trial_from_row(row) for row in rows], complete)
    believed = (*trust(study, stored), Trust(_FRESH_TONES[fresh.word], fresh.why))
    return reasons(believed, stated, speed_reasons(study.result, stored))


def _baseline_origin(study: Study, points: Sequence[TrialPoint]) -> str:
    """Return where the baseline of a result comes from; empty for a study without a result."""
    number = study.result.baseline.trial_number if study.result is not None else None
    return next((words.origins(study).get(point.origin, "") for point in points if point.number == number), "")

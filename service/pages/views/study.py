"""One study: how far it is, what it says, how far that can be trusted, and what came of every trial."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, stdev

from sqlalchemy.orm import Session

from api_schemas.insights import Importance, ParetoPoint
from api_schemas.strategies import TrialConfig
from api_schemas.studies import Study, StudyPhase, StudyState
from api_schemas.trials import TrialState
from db import leases, overview, trial_points, trials, workers
from db.listing import Page
from db.rows import StudyRow
from db.trial_points import TrialFilter, TrialPoint
from service import insights, wording
from service.pages.charts.interval import Interval, interval
from service.pages.charts.parallel import Parallel, parallel
from service.pages.charts.plot import Plot
from service.pages.charts.search import best_so_far, peak, speed_against_memory
from service.pages.figures import percent
from service.pages.views import best, freshness, words
from service.pages.views.freshness import Freshness
from service.pages.views.predicted import Predicted, predicted
from service.pages.views.recommended import Recommended, of_study
from tuner.objective import available_gib
from tuner.space.flat import Flat, flatten

PAGE = 50
_NOISY = 0.1
"""Relative spread of the pairs' ratios beyond which a reader should know of it."""
_RESTART_TONES = {"passed": "good", "failed": "bad", "not_checked": "warn"}
_MOST_CHARTED = 2_000
"""Trials that the charts are made from, newest first; a study of more is rare, and its shape shows long before."""


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    done: int
    total: int
    is_open_ended: bool
    """The total is an upper limit that the search usually does not use up."""
    confirmed: int
    confirmations: int
    activity: str
    remaining: str
    elapsed_s: float


@dataclass(frozen=True)
class TrialLine:
    """One row of the trials table."""

    point: TrialPoint
    config: TrialConfig
    peak_gib: float | None
    tone: str
    reason: str
    of_best: float | None
    """Speed as a share of the fastest feasible trial's."""


@dataclass(frozen=True)
class Trust:
    """One reason for or against believing the answer."""

    tone: str
    text: str


@dataclass(frozen=True)
class StudyPage:
    """All of the page."""

    study: Study
    cluster: str
    workload: str
    state_tone: str
    tone: str
    sentence: str
    best_peak_gib: float | None
    progress: Progress
    trust: tuple[Trust, ...]
    freshness: Freshness
    verdict_chart: Interval | None
    plots: tuple[Plot, ...]
    parallel: Parallel | None
    predicted: Predicted | None
    front: tuple[ParetoPoint, ...]
    """The Pareto front, for those who would rather read it."""
    importance: Importance
    lines: tuple[TrialLine, ...]
    matching: int
    failures: tuple[tuple[str, str, str, int], ...]
    """Tone, kind, words and number."""
    refusals: tuple[str, ...]
    limit_gib: float
    best_number: int | None
    backends: frozenset[str]
    """Of the measured trials, for the legend."""
    recommended: Recommended | None
    has_unusable: bool
    """Some were measured that do not count."""


def study_page(session: Session, row: StudyRow, chosen: TrialFilter, page: Page, now: datetime) -> StudyPage:
    """Everything about a study, with one page of its trials."""
    study = best.read_models(session, [row])[0]
    points = trial_points.of_study(session, row.id, TrialFilter(), Page("number", True, _MOST_CHARTED))
    points.sort(key=lambda point: point.number)
    answer = best.answer(study)
    best_number = answer.trial_number if answer else None
    limit = available_gib(study.cluster, study.spec.objective)
    link = f"/studies/{study.study_id}/trials"
    tone, sentence = words.verdict(study)
    plots = (best_so_far(points, link), speed_against_memory(points, limit, link, best_number))
    flat = [flatten(TrialConfig.model_validate(point.config)) for point in points]
    recommended = of_study(session, row.id)
    fresh = freshness.of(study, workers.everyone(session), recommended.stale_fields if recommended else ())
    fastest = max((p.tokens_per_s_per_gpu or 0 for p in points if p.state == TrialState.COMPLETE), default=0.0)
    shown = trial_points.of_study(session, row.id, chosen, page)
    rejected = [r.value for r in trials.rejections(session, row.id)] if study.rejected else []
    return StudyPage(
        study=study,
        cluster=words.cluster(study.cluster),
        workload=words.workload(study.spec.workload),
        state_tone=words.STATE_TONES[study.state],
        tone=tone,
        sentence=sentence,
        best_peak_gib=best.contender_peak(answer) if answer else None,
        progress=_progress(session, row, study, now),
        trust=tuple(_trust(study, fresh)),
        freshness=fresh,
        verdict_chart=interval(study.result.speedup) if study.result and study.result.speedup else None,
        plots=tuple(plot for plot in plots if plot is not None),
        parallel=parallel(points, flat, link, best_number),
        predicted=predicted(points, link),
        front=tuple(insights.front_of([p for p in points if p.state == TrialState.COMPLETE])),
        importance=_importance(points, flat),
        lines=tuple(_line(point, fastest) for point in shown),
        matching=trial_points.count_trials(session, row.id, chosen),
        failures=tuple(_failure(*entry) for entry in trial_points.failure_counts(session, row.id)),
        refusals=tuple(wording.closest_refusals(rejected)),
        limit_gib=limit,
        best_number=best_number,
        recommended=recommended,
        backends=frozenset(str(p.config["strategy"]["kind"]) for p in points if p.tokens_per_s_per_gpu),
        has_unusable=any(peak(p) is not None and p.state != TrialState.COMPLETE for p in points),
    )


def _progress(session: Session, row: StudyRow, study: Study, now: datetime) -> Progress:
    confirmed, earlier = overview.confirmed_runs(session, row.id, row.match_round)
    done = best.finished(study)
    end = study.finished_at or now
    elapsed = (end - study.created_at).total_seconds()
    budget = study.spec.budget.max_trials
    running = study.state is StudyState.RUNNING
    return Progress(
        done=done,
        total=done if study.phase is StudyPhase.DONE else max(budget or wording.DEFAULT_TRIALS, done),
        is_open_ended=budget is None,
        confirmed=confirmed,
        confirmations=wording.most_confirm_runs(study),
        activity=_activity(session, study, confirmed) if running else "",
        remaining=wording.remaining(study, done, confirmed, earlier, elapsed) if running else "",
        elapsed_s=elapsed,
    )


def _activity(session: Session, study: Study, confirmed: int) -> str:
    if study.phase is StudyPhase.PROFILE:
        return "counting the model's parameters and FLOPs"
    running = [
        run for run in leases.open_runs(session, study.study_id) if run.state is TrialState.RUNNING and run.trial
    ]
    if not running:
        return "waiting for a worker"
    run = running[-1]
    assert run.trial is not None
    where = f"trial {run.trial.number}: {wording.step(run.progress)}"
    if run.purpose == "restart":
        return f"restart of the winner from its own checkpoint, {where}"
    if study.phase is StudyPhase.CONFIRM:
        return f"fresh run {confirmed + 1} of at most {wording.most_confirm_runs(study)}, {where}"
    return where


def _trust(study: Study, fresh: Freshness) -> list[Trust]:
    result = study.result
    if result is None:
        return []
    found = []
    if result.speedup is not None:
        found.append(_repeatability(result.speedup.ratios))
    else:
        found.append(Trust("warn", f"measured in {result.best.runs} run(s), without a comparison"))
    single = any("no other backend" in note for note in result.notes)
    text = "only one backend could run, so no other confirms that it trains the same thing"
    if not single:
        text = (
            "it trains the same thing: losses, gradient norms and weights agree with a configuration of another backend"
        )
    found.append(Trust("warn" if single else "good", text))
    if result.restart is not None:
        found.append(Trust(_RESTART_TONES[result.restart.outcome], wording.restarted(result.restart)))
    tones = {"fresh": "good", "stale": "bad", "unchecked": "quiet"}
    found.append(Trust(tones[fresh.word], fresh.why))
    return found


def _repeatability(ratios: Sequence[float]) -> Trust:
    text = f"{len(ratios)} pairs of fresh runs, which the search did not see"
    spread = stdev(ratios) / fmean(ratios) if len(ratios) > 1 else 0.0
    if spread > _NOISY:
        text += f"; the ratio varied by {percent(spread)} from pair to pair: other programs may have used the machine"
        return Trust("warn", text)
    return Trust("good", text + (f"; the ratio varied by {percent(spread, 1)} from pair to pair" if spread else ""))


def _importance(points: Sequence[TrialPoint], flat: Sequence[Flat]) -> Importance:
    complete = [(p, table) for p, table in zip(points, flat, strict=True) if p.state == TrialState.COMPLETE]
    return insights.importance_of([p for p, _ in complete], [table for _, table in complete])


def _failure(state: str, kind: str, number: int) -> tuple[str, str, str, int]:
    return words.TRIAL_TONES[TrialState(state)], kind, words.FAILURES.get(kind, kind), number


def _line(point: TrialPoint, fastest: float) -> TrialLine:
    reason = ""
    if point.failure_kind is not None:
        reason = f"{words.FAILURES.get(point.failure_kind, point.failure_kind)}: {point.failure_message}"
    feasible = point.tokens_per_s_per_gpu is not None and point.state == TrialState.COMPLETE
    return TrialLine(
        point=point,
        config=TrialConfig.model_validate(point.config),
        peak_gib=peak(point),
        tone=words.TRIAL_TONES[TrialState(point.state)],
        reason=reason,
        of_best=(point.tokens_per_s_per_gpu or 0) / fastest if feasible and fastest else None,
    )

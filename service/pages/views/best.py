"""The home page: one row for each model, workload and cluster that has an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import OPEN_STUDY_STATES, Contender, Study, StudyState
from shardtune.api_schemas.trials.trial import OPEN_TRIAL_STATES, RunPurpose, TrialState
from shardtune.db.listing import Page
from shardtune.db.queries import overview, studies, workers
from shardtune.db.queries.overview import RunCosts
from shardtune.db.queries.workers import OfferedMachine
from shardtune.db.tables.studies import StudyRow
from shardtune.service.pages.views import freshness, purpose, words
from shardtune.service.pages.views.freshness import StudyFreshness
from shardtune.service.pages.views.purpose import Purpose
from shardtune.service.pages.views.recommendation import Recommended, of_studies
from shardtune.service.studies import views as shown
from shardtune.service.wording import cluster_words, time_left
from shardtune.service.wording.time_left import RunsMade
from shardtune.tuner.objective import available_gib

PAGE = 25


@dataclass(frozen=True)
class StudyLine:
    """What is served for one case; where nothing is, the answer of its newest study."""

    study: Study
    cluster: str
    workload: str
    best: Contender
    peak_gib: float | None
    capacity_gib: float
    """What a rank may use."""
    freshness: StudyFreshness
    recommended: Recommended | None


@dataclass(frozen=True)
class RunningRow:
    """A study under way."""

    study: Study
    cluster: str
    workload: str
    state_tone: str
    purpose: Purpose
    doing: str
    """What it does, and how long yet: `confirming, fresh run 3 of at most 14 · about 5 min left`."""
    done: int
    total: int | None
    tone: str
    sentence: str


@dataclass(frozen=True)
class Home:
    """All of the page."""

    rows: tuple[StudyLine, ...]
    total: int
    running: tuple[RunningRow, ...]
    devices: tuple[str, ...]
    has_workers: bool
    has_studies: bool
    has_mfu: bool


def home(session: Session, project_id: str | None, text: str, device: str | None, page: Page, now: datetime) -> Home:
    """The rows that match, and what runs now."""
    everyone = workers.machines(session, project_id)
    ids, total = overview.best_ids(session, project_id, text, device, page)
    answered = read_models(session, overview.by_ids(session, ids))
    active, _ = overview.studies(session, project_id, "", OPEN_STUDY_STATES, Page("age", descending=True, limit=6))
    served = of_studies(session, ids)
    rows = tuple(_best_row(study, everyone, served.get(study.study_id)) for study in answered)
    return Home(
        rows=rows,
        total=total,
        running=running_rows(session, active, now),
        devices=tuple(overview.devices(session, project_id)),
        has_workers=bool(everyone),
        has_studies=overview.has_studies(session, project_id),
        has_mfu=any(row.best.mfu is not None for row in rows),
    )


def read_models(session: Session, rows: Sequence[StudyRow]) -> list[Study]:
    """Rows as values, with the counts of all of them in two queries."""
    ids = [row.id for row in rows]
    counts, rejected = studies.trial_counts(session, ids), studies.rejection_counts(session, ids)
    return [shown.study(row, counts.get(row.id, {}), rejected.get(row.id, 0)) for row in rows]


def running_rows(session: Session, rows: Sequence[StudyRow], now: datetime) -> tuple[RunningRow, ...]:
    """Studies with their progress."""
    found = read_models(session, rows)
    purposes = purpose.of_studies(session, found)
    made = runs_made(session, [study for study in found if study.state is StudyState.RUNNING])
    return tuple(_running_row(study, purposes[study.study_id], made.get(study.study_id), now) for study in found)


def runs_made(session: Session, found: Sequence[Study]) -> dict[str, RunsMade]:
    """By study: what its time left follows from."""
    costs = overview.run_costs(session, [study.study_id for study in found])
    return {study.study_id: _made(study, costs[study.study_id]) for study in found}


def _made(study: Study, costs: Mapping[tuple[RunPurpose, int], RunCosts]) -> RunsMade:
    search, again = costs.get((RunPurpose.SEARCH, 0)), costs.get((RunPurpose.VALIDATION, study.final_comparison))
    world = study.cluster.world_size
    return RunsMade(
        finished=finished(study),
        shortest_s=search.shortest / world if search else None,
        fresh=again.runs if again else 0,
        fresh_s=again.mean / world if again else None,
    )


def _running_row(study: Study, why: Purpose, made: RunsMade | None, now: datetime) -> RunningRow:
    tone, sentence = words.verdict(study, why.outcome)
    return RunningRow(
        study=study,
        cluster=cluster_words.told_apart(study.cluster),
        workload=words.workload(study.spec.workload),
        state_tone=words.STATE_TONES[study.state],
        purpose=why,
        doing=_doing(study, made, now) if made is not None else "",
        done=finished(study),
        total=study.spec.budget.max_trials,
        tone=tone,
        sentence=sentence,
    )


def finished(study: Study) -> int:
    """Trials that have come to their own end; what was cancelled with the study has not."""
    return sum(
        count for state, count in study.trials.items() if state not in (*OPEN_TRIAL_STATES, TrialState.CANCELLED)
    )


def _doing(study: Study, made: RunsMade, now: datetime) -> str:
    left = time_left.left(study, made, (now - (study.started_at or study.created_at)).total_seconds())
    return words.phase(study, made.fresh) + (f" · {left} left" if left else "")


def answer(study: Study) -> Contender | None:
    """The best, or the best so far."""
    return study.result.best if study.result else study.best_so_far


def contender_peak(contender: Contender) -> float | None:
    """What the memory limit is about."""
    return contender.peak_allocated_gib if contender.peak_reserved_gib is None else contender.peak_reserved_gib


def _best_row(study: Study, everyone: Sequence[OfferedMachine], served: Recommended | None) -> StudyLine:
    if served is not None and served.state == "serving":
        study = study.model_copy(update={"result": served.result})
    assert study.result is not None
    best = study.result.best
    return StudyLine(
        study=study,
        cluster=cluster_words.told_apart(study.cluster),
        workload=words.workload(study.spec.workload),
        best=best,
        peak_gib=contender_peak(best),
        capacity_gib=available_gib(study.cluster, study.spec.objective),
        freshness=freshness.of(study, everyone, served.stale_fields if served else ()),
        recommended=served,
    )

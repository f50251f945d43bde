"""The home page: one row for each model, workload and cluster that has an answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from api_schemas.studies import Contender, Study, StudyState
from db import overview, studies, workers
from db.listing import Page
from db.rows import StudyRow, WorkerRow
from service import views as shown
from service.pages.views import freshness, words
from service.pages.views.freshness import Freshness
from service.pages.views.recommended import Recommended, of_studies

PAGE = 25


@dataclass(frozen=True)
class BestRow:
    """What is served for one subject; where nothing is, the answer of its newest study."""

    study: Study
    cluster: str
    workload: str
    best: Contender
    peak_gib: float | None
    capacity_gib: float
    tone: str
    verdict: str
    freshness: Freshness
    recommended: Recommended | None


@dataclass(frozen=True)
class RunningRow:
    """A study under way."""

    study: Study
    cluster: str
    workload: str
    state_tone: str
    done: int
    total: int | None
    tone: str
    sentence: str


@dataclass(frozen=True)
class Home:
    """All of the page."""

    rows: tuple[BestRow, ...]
    total: int
    running: tuple[RunningRow, ...]
    devices: tuple[str, ...]
    has_workers: bool
    has_studies: bool


def home(session: Session, project_id: str | None, text: str, device: str | None, page: Page) -> Home:
    """The rows that match, and what runs now."""
    everyone = workers.everyone(session)
    ids, total = overview.best_ids(session, project_id, text, device, page)
    answered = read_models(session, overview.by_ids(session, ids))
    active, _ = overview.studies(
        session, project_id, "", (StudyState.RUNNING, StudyState.PAUSED), Page("age", descending=True, limit=6)
    )
    served = of_studies(session, ids)
    return Home(
        rows=tuple(_best_row(study, everyone, served.get(study.study_id)) for study in answered),
        total=total,
        running=tuple(running_row(study) for study in read_models(session, active)),
        devices=tuple(overview.devices(session, project_id)),
        has_workers=bool(everyone),
        has_studies=overview.has_studies(session, project_id),
    )


def read_models(session: Session, rows: Sequence[StudyRow]) -> list[Study]:
    """Rows as values, with the counts of all of them in two queries."""
    ids = [row.id for row in rows]
    counts, rejected = studies.trial_counts(session, ids), studies.rejection_counts(session, ids)
    return [shown.study(row, counts.get(row.id, {}), rejected.get(row.id, 0)) for row in rows]


def running_row(study: Study) -> RunningRow:
    """A study with its progress."""
    tone, sentence = words.verdict(study)
    return RunningRow(
        study=study,
        cluster=words.cluster(study.cluster),
        workload=words.workload(study.spec.workload),
        state_tone=words.STATE_TONES[study.state],
        done=finished(study),
        total=study.spec.budget.max_trials,
        tone=tone,
        sentence=sentence,
    )


def finished(study: Study) -> int:
    """Trials that have ended."""
    return sum(count for state, count in study.trials.items() if state not in ("waiting", "running"))


def answer(study: Study) -> Contender | None:
    """The best, or the best so far."""
    return study.result.best if study.result else study.best_so_far


def contender_peak(contender: Contender) -> float | None:
    """What the memory limit is about."""
    return contender.peak_allocated_gib if contender.peak_reserved_gib is None else contender.peak_reserved_gib


def _best_row(study: Study, everyone: Sequence[WorkerRow], served: Recommended | None) -> BestRow:
    if served is not None and served.state == "serving":
        study = study.model_copy(update={"result": served.result})
    assert study.result is not None
    tone, sentence = words.verdict(study)
    best = study.result.best
    return BestRow(
        study=study,
        cluster=words.cluster(study.cluster),
        workload=words.workload(study.spec.workload),
        best=best,
        peak_gib=contender_peak(best),
        capacity_gib=study.cluster.memory_gib,
        tone=tone,
        verdict=sentence,
        freshness=freshness.of(study, everyone, served.stale_fields if served else ()),
        recommended=served,
    )

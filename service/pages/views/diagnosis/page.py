"""Values of a trial's diagnosis page: the report of its last profiled run, or the reason for none."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.trials.diagnosis import CollectiveFigures, Diagnosis, Finding, MemoryMoment
from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.api_schemas.trials.expected_parts import ExpectedPart
from shardtune.db.queries import trials
from shardtune.db.tables.studies import StudyRow
from shardtune.service.lifecycle import traces
from shardtune.service.pages.charts import steps
from shardtune.service.pages.charts.steps import Steps
from shardtune.service.studies import diagnoses
from shardtune.service.wording import diagnosis_words

_MOST_ROWS = 12


@dataclass(frozen=True)
class CollectiveRow:
    """Row of the table of collectives, which covers one kind with one purpose, such as all-gathers of parameters."""

    words: str
    figures: CollectiveFigures
    message: str
    speed: str
    share: float


@dataclass(frozen=True)
class MemoryReport:
    """Peak memory of the rank that used the most memory, in GiB."""

    words: str
    is_over: bool
    total_gib: float
    kinds: tuple[tuple[str, float], ...]
    holders: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class DiagnosisReport:
    """A diagnosis as the page shows it."""

    sentences: tuple[str, ...]
    expected: tuple[tuple[str, ExpectedPart], ...]
    """Parts of the predicted step, each with its display name."""
    findings: tuple[tuple[str, Finding], ...]
    bars: Steps
    timeline: Steps | None
    legend: tuple[tuple[str, str], ...]
    collectives: tuple[CollectiveRow, ...]
    memory: MemoryReport | None
    cost: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class WhyContext:
    """All values of the page."""

    study_id: str
    model: str
    number: int
    description: str
    latest: TrialDiagnosis | None
    report: DiagnosisReport | None
    rejected: str | None
    """Reason why the trial cannot be profiled now; None if it can."""


def why_page(session: Session, row: StudyRow, number: int) -> WhyContext:
    """Return the values of a trial's diagnosis page.

    Raises:
        NotFound: the study has no such trial.
    """
    latest = diagnoses.newest_diagnosis(session, row, number)
    trial = trials.by_number(session, row.id, number)
    assert trial is not None
    # The page says so instead of offering a button that the service would reject.
    rejected = "the study is still running" if row.state.is_open else traces.why_not_traceable(row)
    if row.deleted_at is not None:
        rejected = "the study was deleted"
    return WhyContext(
        study_id=row.id,
        model=row.spec.model.name,
        number=number,
        description=trial.config.describe(),
        latest=latest,
        report=diagnosis_report(latest.diagnosis) if latest is not None and latest.diagnosis is not None else None,
        rejected=rejected,
    )


def diagnosis_report(diagnosis: Diagnosis) -> DiagnosisReport:
    """Convert a diagnosis to the form in which the page shows it."""
    return DiagnosisReport(
        sentences=tuple(diagnosis_words.summary_sentences(diagnosis)),
        expected=tuple((diagnosis_words.EXPECTED_WORDS[part.name], part) for part in diagnosis.expected),
        findings=tuple((diagnosis_words.FINDING_TITLES[finding.kind], finding) for finding in diagnosis.findings),
        bars=steps.rank_bars(diagnosis),
        timeline=steps.timeline(diagnosis.timeline) if diagnosis.timeline is not None else None,
        legend=steps.legend(diagnosis),
        collectives=tuple(_collective_row(figures, diagnosis) for figures in diagnosis.collectives[:_MOST_ROWS]),
        memory=_memory(diagnosis.recorded.memory)
        if diagnosis.recorded is not None and diagnosis.recorded.memory is not None
        else None,
        cost=diagnosis_words.profiling_cost(diagnosis.recorded) if diagnosis.recorded is not None else "",
        notes=diagnosis.notes,
    )


def _memory(moment: MemoryMoment) -> MemoryReport:
    return MemoryReport(
        words=diagnosis_words.memory_in_words(moment),
        is_over=moment.limit_bytes is not None and moment.bytes > moment.limit_bytes,
        total_gib=moment.bytes / GIB,
        kinds=_largest(moment.kinds),
        holders=_largest(moment.holders),
    )


def _largest(sizes: Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    return tuple((name, size / GIB) for name, size in sorted(sizes.items(), key=lambda entry: -entry[1]))


def _collective_row(figures: CollectiveFigures, diagnosis: Diagnosis) -> CollectiveRow:
    return CollectiveRow(
        words=diagnosis_words.collective_in_words(figures),
        figures=figures,
        message="–" if figures.message_bytes is None else diagnosis_words.bytes_in_words(figures.message_bytes),
        speed="–" if figures.bytes_per_s is None else speed_in_words(figures.bytes_per_s),
        share=diagnosis_words.fraction_of_step(figures.exposed_s, diagnosis),
    )

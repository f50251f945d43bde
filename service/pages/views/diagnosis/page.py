"""Where the steps of a trial went, from its last run under the profiler; or why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.base import GIB
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
    """One use of a collective."""

    words: str
    figures: CollectiveFigures
    message: str
    speed: str
    share: float


@dataclass(frozen=True)
class MemoryShown:
    """What the fullest rank held, in GiB."""

    words: str
    is_over: bool
    total_gib: float
    kinds: tuple[tuple[str, float], ...]
    holders: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Told:
    """A diagnosis, ready to be shown."""

    sentences: tuple[str, ...]
    expected: tuple[tuple[str, ExpectedPart], ...]
    """Parts by what they are called, beside what they were predicted to take."""
    findings: tuple[tuple[str, Finding], ...]
    bars: Steps
    timeline: Steps | None
    legend: tuple[tuple[str, str], ...]
    collectives: tuple[CollectiveRow, ...]
    memory: MemoryShown | None
    cost: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class WhyContext:
    """All of the page."""

    study_id: str
    model: str
    number: int
    description: str
    asked: TrialDiagnosis | None
    told: Told | None
    rejected: str | None
    """Why it cannot be run under the profiler now."""


def why_page(session: Session, row: StudyRow, number: int) -> WhyContext:
    """Of one trial.

    Raises:
        NotFound: the study has none of this number.
    """
    asked = diagnoses.newest(session, row, number)
    trial = trials.by_number(session, row.id, number)
    assert trial is not None
    rejected = "the study still runs" if row.state.is_open else traces.why_not(row)
    if row.deleted_at is not None:
        rejected = "the study was deleted"
    return WhyContext(
        study_id=row.id,
        model=row.spec.model.name,
        number=number,
        description=trial.config.describe(),
        asked=asked,
        told=_told(asked.diagnosis) if asked is not None and asked.diagnosis is not None else None,
        rejected=rejected,
    )


def _told(found: Diagnosis) -> Told:
    return Told(
        sentences=tuple(diagnosis_words.sentences(found)),
        expected=tuple((diagnosis_words.EXPECTED_WORDS[one.name], one) for one in found.expected),
        findings=tuple((diagnosis_words.KNOWN_MISTAKES[one.kind], one) for one in found.findings),
        bars=steps.rank_bars(found),
        timeline=steps.timeline(found.timeline) if found.timeline is not None else None,
        legend=steps.present(found),
        collectives=tuple(_row(one, found) for one in found.collectives[:_MOST_ROWS]),
        memory=_memory(found.recorded.memory)
        if found.recorded is not None and found.recorded.memory is not None
        else None,
        cost=diagnosis_words.cost(found.recorded) if found.recorded is not None else "",
        notes=found.notes,
    )


def _memory(moment: MemoryMoment) -> MemoryShown:
    return MemoryShown(
        words=diagnosis_words.memory_in_words(moment),
        is_over=moment.limit_bytes is not None and moment.bytes > moment.limit_bytes,
        total_gib=moment.bytes / GIB,
        kinds=_largest(moment.kinds),
        holders=_largest(moment.holders),
    )


def _largest(sizes: Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    return tuple((name, size / GIB) for name, size in sorted(sizes.items(), key=lambda one: -one[1]))


def _row(one: CollectiveFigures, found: Diagnosis) -> CollectiveRow:
    return CollectiveRow(
        words=diagnosis_words.use_in_words(one),
        figures=one,
        message="–" if one.message_bytes is None else diagnosis_words.bytes_in_words(one.message_bytes),
        speed="–" if one.bytes_per_s is None else diagnosis_words.speed_in_words(one.bytes_per_s),
        share=diagnosis_words.share(one.exposed_s, found),
    )

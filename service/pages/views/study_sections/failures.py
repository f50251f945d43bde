"""Setbacks of a study: failed, stopped, disturbed and rejected runs, each with its number."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import AttemptEnd, Rejection, TrialState
from shardtune.db.queries import leases, trial_points, trials
from shardtune.db.queries.trial_points import TrialPoint
from shardtune.service.pages.views import words


@dataclass(frozen=True)
class Setback:
    """Number of trials or runs that have no usable measurement, or only a doubtful one, for the same reason."""

    tone: str
    number: int
    text: str
    query: str = ""
    """Query string that filters the table of trials to the counted ones; empty if there is no such filter."""


def setbacks(session: Session, study: Study, points: Sequence[TrialPoint]) -> tuple[Setback, ...]:
    """Return counts of a study's trials and runs without a usable measurement, by reason, with failures first.
    `points`: the study's trials."""
    failures = [
        Setback(words.TRIAL_TONES[TrialState(state)], number, words.FAILURES.get(kind, kind), f"?reason={kind}")
        for state, kind, number in trial_points.failure_counts(session, study.study_id)
    ]
    pruned = study.trials.get(TrialState.PRUNED, 0)
    repeats = leases.count_attempts_by_end(session, study.study_id, AttemptEnd.DISTURBED)
    disturbed = _disturbed_searches(study, points)
    compared = trial_points.count_disturbed_validation_runs(session, study.study_id)
    others = (
        Setback("quiet", pruned, "ended early: cannot become the fastest", f"?state={TrialState.PRUNED.value}"),
        Setback("warn", disturbed, f"search {_runs(disturbed)} counted although disturbed"),
        Setback("warn", compared, f"validation {_runs(compared)} kept although disturbed"),
        Setback("warn", repeats, discarded_text(repeats)),
        Setback("quiet", study.rejected, "rejected before they ran: predicted to need more memory than available"),
    )
    return (*failures, *(setback for setback in others if setback.number))


def failure_kinds(session: Session, study_id: str) -> tuple[tuple[str, str], ...]:
    """Return the kinds of failures of a study with their descriptions, for the filter of its trials."""
    kinds = dict.fromkeys(kind for _, kind, _ in trial_points.failure_counts(session, study_id))
    return tuple((kind, words.FAILURES.get(kind, kind)) for kind in kinds)


def rejections(session: Session, study: Study) -> list[Rejection]:
    """Configurations of a study that the memory gate rejected as too large."""
    # Without a query where there are none, as in most studies.
    return [row.value for row in trials.rejections(session, study.study_id)] if study.rejected else []


def least_needed_gib(rejected: Sequence[Rejection], usable_gib: float) -> float | None:
    """Return the least memory in GiB that a rank would need under any of the rejected configurations. None if there are
    none, or if the memory of a host, not of a rank, was too small for some: these need less of a rank."""
    if lacks_host_memory(rejected, usable_gib):
        return None
    return min((rejection.needed_gib for rejection in rejected), default=None)


def lacks_host_memory(rejected: Sequence[Rejection], usable_gib: float) -> bool:
    """Whether any of these configurations was rejected because its host, not each rank, has too little memory.
    `usable_gib`: memory that a rank may use."""
    return any(_is_of_host(rejection, usable_gib) for rejection in rejected)


def _is_of_host(rejection: Rejection, usable_gib: float) -> bool:
    if rejection.memory_of is not None:
        return rejection.memory_of == "host"
    # Earlier releases did not record it. A host that has just what a rank may use cannot be told from the rank.
    return rejection.available_gib != usable_gib


def _disturbed_searches(study: Study, points: Sequence[TrialPoint]) -> int:
    if study.result is not None and not study.state.is_open:
        return study.result.disturbed_search_runs
    return sum(point.disturbed is not None for point in points if point.state.is_feasible)


def discarded_text(number: int) -> str:
    """Say that disturbed runs were discarded and repeated. It names no cause: other programs, lowered GPU clocks and an
    unexplained spread of a run's timed windows all make it run again."""
    pages = "its trial's page says" if number == 1 else "their trials' pages say"
    return f"{_runs(number)} discarded and repeated, because of a disturbance; {pages} which"


def _runs(number: int) -> str:
    return "run" if number == 1 else "runs"

"""Purpose of a study: a user's search, or a measurement that the service started for a recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import RetuneOutcome, RetuneState
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.db.queries import retunes
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.wording import retune_words


@dataclass(frozen=True)
class Purpose:
    """Purpose of a study: a user's search, or part of a retune (a repeated measurement of a recommendation) with its
    cause and outcome."""

    kind: str
    """Kind of the study: `search`, `challenge`, `new search` or `canary`."""
    explained: str
    """Sentence that explains the study's kind."""
    of_study: str | None = None
    """Id of the study that found the recommendation which this study measures again."""
    cause: str = ""
    """Cause of the retune and its schedule, if any; empty for a study that a user created."""
    outcome: str = ""
    """Outcome of the retune, as a sentence, if this study ended it; else empty."""
    is_kept: bool = False
    """Whether the retune left the recommendation unchanged."""


_SEARCH = Purpose("search", "A user's search for the fastest configuration.")
KIND_TEXTS = {
    "challenge": "Measures the recommendation against a few other configurations.",
    "search": "Searches again, because a challenge changed the ranking.",
    "canary": "Runs the recommendation on one worker to detect a slowdown.",
}


def of_studies(session: Session, studies: Sequence[Study]) -> dict[str, Purpose]:
    """Return the purpose of each study by the study's id; this takes at most one query."""
    retune_ids = {
        study.system_study.retune_id
        for study in studies
        if study.system_study is not None and study.system_study.retune_id is not None
    }
    retune_rows = retunes.with_schedules(session, retune_ids)
    return {study.study_id: _purpose_of(study, retune_rows) for study in studies}


def _purpose_of(study: Study, retune_rows: dict[str, tuple[RetuneRow, str | None]]) -> Purpose:
    system_study = study.system_study
    if system_study is None:
        return _SEARCH
    kind = "new search" if system_study.kind == SystemStudyKind.SEARCH else system_study.kind
    if system_study.retune_id not in retune_rows:
        return Purpose(kind, KIND_TEXTS[system_study.kind], system_study.warm_study_id)
    retune, schedule = retune_rows[system_study.retune_id]
    cause = retune_words.cause(retune.cause, retune.changed_fields) + (f" (schedule {schedule})" if schedule else "")
    is_last = study.study_id == (retune.search_study_id or retune.challenge_study_id)
    ended = retune.outcome if is_last and retune.state is RetuneState.ENDED else None
    outcome = ""
    # A replacement needs no sentence: it is the answer of the study itself.
    if ended is not None and ended is not RetuneOutcome.REPLACED:
        outcome = f"{ended.capitalize()}: {retune.reason}." if retune.reason else f"{ended.capitalize()}."
    is_kept = ended is RetuneOutcome.KEPT
    return Purpose(kind, KIND_TEXTS[system_study.kind], system_study.warm_study_id, cause, outcome, is_kept)

"""What a study is for: a user's search, or what the service asks again about an answer that is served."""

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
    """Why a study exists."""

    kind: str
    """`search`, `challenge`, `new search` or `canary`."""
    explained: str
    """The kind in a sentence."""
    of_study: str | None = None
    """The search that found what is measured again."""
    cause: str = ""
    """Of a retune's study: why, and by which schedule."""
    outcome: str = ""
    """Of a retune that has ended with this study: what came of it, as a sentence."""


_SEARCH = Purpose("search", "Looks for the fastest configuration; a user asked for it.")
_EXPLAINED = {
    "challenge": "Measures again what is served, against a few other configurations.",
    "search": "Searches again, because a challenge saw the ranking move.",
    "canary": "Runs what is served alone on one worker, to see whether it has become slower.",
}


def of_studies(session: Session, studies: Sequence[Study]) -> dict[str, Purpose]:
    """By study id; one query, none where users asked for all of them."""
    asked = {
        one.system_study.retune_id
        for one in studies
        if one.system_study is not None and one.system_study.retune_id is not None
    }
    found = retunes.with_schedules(session, asked)
    return {one.study_id: _of(one, found) for one in studies}


def _of(study: Study, found: dict[str, tuple[RetuneRow, str | None]]) -> Purpose:
    system_study = study.system_study
    if system_study is None:
        return _SEARCH
    kind = "new search" if system_study.kind == SystemStudyKind.SEARCH else system_study.kind
    if system_study.retune_id not in found:
        return Purpose(kind, _EXPLAINED[system_study.kind], system_study.warm_study_id)
    retune, schedule = found[system_study.retune_id]
    cause = retune_words.cause(retune.cause, retune.changed_fields) + (f" (schedule {schedule})" if schedule else "")
    is_last = study.study_id == (retune.search_study_id or retune.challenge_study_id)
    ended = retune.outcome if is_last and retune.state is RetuneState.ENDED else None
    outcome = ""
    # What replaced it is the answer of the study itself.
    if ended is not None and ended is not RetuneOutcome.REPLACED:
        outcome = f"{ended.capitalize()}: {retune_words.short_reason(ended, retune.reason)}."
    return Purpose(kind, _EXPLAINED[system_study.kind], system_study.warm_study_id, cause, outcome)

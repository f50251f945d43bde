"""Whether a study's answer is served as the best, what was decided about it, and what can be decided now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState, Renewed
from shardtune.api_schemas.retuning.retunes import RetuneState
from shardtune.api_schemas.studies.study import StudyResult
from shardtune.db.queries import best, retunes, study_recommendations
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.wording import retune_words

_SHOWN = 8
"""Decisions shown, newest first."""
_WORDS = {
    DecisionAction.PROPOSED: "proposed",
    DecisionAction.SERVED: "served, as the fastest known",
    DecisionAction.KEPT: "kept back: what is served is faster",
    DecisionAction.APPROVED: "approved",
    DecisionAction.REJECTED: "rejected",
    DecisionAction.PINNED: "pinned",
    DecisionAction.UNPINNED: "unpinned",
    DecisionAction.ROLLED_BACK: "rolled back to",
    DecisionAction.STALE: "stale: the machines have changed",
    DecisionAction.FRESH: "fresh again: the machines have changed back",
    DecisionAction.RENEWED: "measured again, and stays",
    DecisionAction.SUPERSEDED: "measured on changed hardware or software since",
    DecisionAction.INCONCLUSIVE: "measured again, without a clear answer",
    DecisionAction.REGRESSION: "found slower than it was measured",
}
_TONES = {
    RecommendationState.SERVING: "good",
    RecommendationState.PROPOSED: "warn",
    RecommendationState.RETIRED: "quiet",
    RecommendationState.REJECTED: "quiet",
}


@dataclass(frozen=True)
class Made:
    """One decision."""

    at: datetime
    text: str
    by: str
    note: str | None
    is_about_this: bool


@dataclass(frozen=True)
class Proposal:
    """A newer answer that waits for approval."""

    study_id: str
    tokens_per_s_per_gpu: float
    created_at: datetime


@dataclass(frozen=True)
class Again:
    """The newest retune of the case."""

    words: str
    """`measured again and kept`."""
    why: str
    is_over: bool
    at: datetime
    study_id: str | None


@dataclass(frozen=True)
class Recommended:
    """The recommendation a study made."""

    recommendation_id: str
    target_key: str
    state: str
    tone: str
    result: StudyResult
    """What is recommended; after a retune not all that the study found."""
    renewed: Renewed | None
    """What was shown of it at first, where a retune has kept it."""
    renewed_at: datetime | None
    """When that was."""
    again: Again | None
    is_superseded: bool
    """Measured since on other hardware or software: whoever asks gets that."""
    is_pinned: bool
    newer: Proposal | None
    """Than this one, where this one is served."""
    served_study: str | None
    """The study whose answer is served in this case, where it is another."""
    stale_fields: tuple[str, ...]
    """Fields of the fingerprint that have changed since, where it is served and stale."""
    actions: tuple[tuple[str, str], ...]
    """Word of the action and label of its button."""
    decisions: tuple[Made, ...]


def of_studies(session: Session, study_ids: Sequence[str]) -> dict[str, Recommended]:
    """By study: its recommendation that is served, else its newest, without history."""
    rows = study_recommendations.of_studies(session, study_ids)
    cases = {_case(row) for row in rows.values()}
    served, proposals = best.served_of(session, cases), best.newest_proposals(session, cases)
    again, first = retunes.newest(session, cases), _first_times(session, list(rows.values()))
    return {
        study: _view(row, served.get(_case(row)), proposals.get(_case(row)), again.get(_case(row)), first)
        for study, row in rows.items()
    }


def of_study(session: Session, study_id: str) -> Recommended | None:
    """With its history; None while the study has recommended nothing."""
    row = study_recommendations.newest_of_study(session, study_id)
    if row is None:
        return None
    proposal = best.newest_proposal(session, *_case(row))
    case, again = best.served(session, *_case(row)), retunes.newest(session, [_case(row)])
    now = best.served(session, row.project_id, case.superseded_by) if case and case.superseded_by else None
    return _view(
        row, case, proposal, again.get(_case(row)), _first_times(session, [row]), _decisions(session, row), now
    )


def _case(row: RecommendationRow) -> tuple[str, str]:
    return row.project_id, row.target_key


def _view(
    row: RecommendationRow,
    case: TuningTargetRow | None,
    proposal: RecommendationRow | None,
    again: RetuneRow | None,
    first: Mapping[str, datetime],
    decisions: tuple[Made, ...] = (),
    now: TuningTargetRow | None = None,
) -> Recommended:
    """`first`: when the recommendations were made that it goes back to; `now`: the case under the key it has since."""
    is_serving = row.state is RecommendationState.SERVING
    served = now.serving if now is not None else case.serving if case is not None else None
    is_superseded = case is not None and case.superseded_by is not None
    renewed = row.answer.renewed
    return Recommended(
        recommendation_id=row.id,
        target_key=row.target_key,
        state=row.state.value,
        tone="quiet" if is_superseded else _TONES[row.state],
        result=row.answer.result,
        renewed=renewed,
        renewed_at=first.get(renewed.recommendation_id) if renewed is not None else None,
        again=_again(again) if again is not None else None,
        is_superseded=is_serving and is_superseded,
        newer=_newer(row, proposal) if is_serving else None,
        is_pinned=is_serving and case is not None and case.is_pinned,
        served_study=served.study_id if served is not None and served.id != row.id else None,
        stale_fields=tuple(case.changed_fields) if is_serving and case and case.freshness == Freshness.STALE else (),
        actions=_actions(row, case),
        decisions=decisions,
    )


def _again(retune: RetuneRow) -> Again:
    is_over = retune.state is RetuneState.ENDED
    return Again(
        words=retune_words.came_of(retune.state, retune.outcome),
        why=retune_words.short_reason(retune.outcome, retune.reason),
        is_over=is_over,
        at=retune.ended_at or retune.started_at or retune.created_at,
        study_id=retune.search_study_id or retune.challenge_study_id,
    )


def _first_times(session: Session, rows: Sequence[RecommendationRow]) -> dict[str, datetime]:
    ids = [row.answer.renewed.recommendation_id for row in rows if row.answer.renewed is not None]
    return study_recommendations.times(session, ids)


def _newer(row: RecommendationRow, found: RecommendationRow | None) -> Proposal | None:
    if found is None or found.created_at < row.created_at:
        return None
    return Proposal(found.study_id, found.answer.result.best.tokens_per_s_per_gpu, found.created_at)


def _actions(row: RecommendationRow, case: TuningTargetRow | None) -> tuple[tuple[str, str], ...]:
    match row.state:
        case RecommendationState.PROPOSED:
            return ("approve", "Approve"), ("reject", "Reject")
        case RecommendationState.SERVING:
            return (("unpin", "Unpin"),) if case is not None and case.is_pinned else (("pin", "Pin"),)
        case RecommendationState.RETIRED | RecommendationState.REJECTED:
            return (("rollback", "Roll back to this"),)
        case _:
            assert_never(row.state)


def _decisions(session: Session, row: RecommendationRow) -> tuple[Made, ...]:
    found = best.decisions(session, row.project_id, row.target_key, None, _SHOWN)
    return tuple(Made(d.created_at, _WORDS[d.action], d.by, d.note, d.recommendation_id == row.id) for d in found)

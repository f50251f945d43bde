"""Recommendation of a study: its state, the decisions about it, and the actions that are possible now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.recommendations.best import DecisionAction, EarlierVerdict, RecommendationState
from shardtune.api_schemas.retuning.retunes import RetuneState
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE
from shardtune.db.queries import best, retunes
from shardtune.db.queries.recommendations import history, proposals, study_recommendations
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.wording import retune_words

_MOST_DECISIONS = 8
"""Maximum number of decisions on a recommendation, such as approvals, that the page shows, newest first."""
DECISION_TEXTS = {
    DecisionAction.PROPOSED: "proposed",
    DecisionAction.RECOMMENDED: "recommended as the fastest known",
    DecisionAction.KEPT: "not recommended: the current recommendation stays",
    DecisionAction.APPROVED: "approved",
    DecisionAction.REJECTED: "rejected",
    DecisionAction.PINNED: "pinned",
    DecisionAction.UNPINNED: "unpinned",
    DecisionAction.ROLLED_BACK: "rolled back to",
    DecisionAction.STALE: "stale: hardware or software has changed",
    DecisionAction.FRESH: "fresh again: hardware or software has changed back",
    DecisionAction.WITHDRAWN: "withdrawn",
    DecisionAction.RENEWED: "measured again and kept",
    DecisionAction.SUPERSEDED: "measured on changed hardware or software since",
    DecisionAction.INCONCLUSIVE: "measured again without a clear answer",
    DecisionAction.REGRESSION: "slower than measured before",
}
_TONES = {
    RecommendationState.RECOMMENDED: "good",
    RecommendationState.PROPOSED: "warn",
    RecommendationState.RETIRED: "quiet",
    RecommendationState.REJECTED: "quiet",
}


@dataclass(frozen=True)
class ShownDecision:
    """One decision about a recommendation."""

    at: datetime
    text: str
    by: str
    note: str | None
    is_about_this: bool


@dataclass(frozen=True)
class Proposal:
    """A newer answer for the same tuning target that waits for approval."""

    study_id: str
    tokens_per_s_per_gpu: float
    created_at: datetime


@dataclass(frozen=True)
class LatestRetune:
    """Newest retune (repeated measurement of the recommendation) of a tuning target."""

    words: str
    """Outcome of the retune, or its state while it runs: `measured again and kept`."""
    why: str
    is_over: bool
    at: datetime
    study_id: str | None


@dataclass(frozen=True)
class Recommended:
    """A study's recommendation."""

    recommendation_id: str
    target_key: str
    state: str
    tone: str
    result: StudyResult
    """Result that is recommended. After a retune (repeated measurement) it may differ from the study's own result."""
    renewed: EarlierVerdict | None
    """Verdict of the first measurement, if a retune measured the recommendation again and kept it; else None."""
    renewed_at: datetime | None
    """Time of the original recommendation."""
    again: LatestRetune | None
    is_superseded: bool
    """Whether a measurement on newer hardware or software has replaced the recommendation."""
    is_too_busy: bool
    """Whether the configuration is recommended although the machine was too busy to tell whether another one is
    faster."""
    is_pinned: bool
    newer: Proposal | None
    """Newer answer that waits for approval, if this is the current recommendation; else None."""
    recommended_study: str | None
    """Id of the other study whose answer is recommended for this tuning target; None if this study's answer is
    recommended, or none."""
    stale_fields: tuple[str, ...]
    """Fields of the machine's fingerprint (its hardware and software versions) that changed, if this is the current
    recommendation and it is stale; else empty."""
    actions: tuple[tuple[str, str], ...]
    """Actions that a user can apply to the recommendation, each with the label of its button."""
    decisions: tuple[ShownDecision, ...]


def of_studies(session: Session, study_ids: Sequence[str]) -> dict[str, Recommended]:
    """Return a recommendation for each study, by study id: the current one or, if there is none, the newest. The
    decisions on it are not read."""
    rows = study_recommendations.of_studies(session, study_ids)
    # A fixed number of queries for any number of studies.
    cases = {_target_id(row) for row in rows.values()}
    recommended, proposed = best.get_targets(session, cases), proposals.newest_proposals(session, cases)
    again, first = retunes.newest(session, cases), _first_times(session, list(rows.values()))
    return {
        study: _combine(
            row, recommended.get(_target_id(row)), proposed.get(_target_id(row)), again.get(_target_id(row)), first
        )
        for study, row in rows.items()
    }


def of_study(session: Session, study_id: str) -> Recommended | None:
    """Return a study's recommendation with the decisions on it, such as approvals; None without a recommendation."""
    row = study_recommendations.newest_of_study(session, study_id)
    if row is None:
        return None
    proposal = proposals.newest_proposal(session, *_target_id(row))
    case, again = best.get_target(session, *_target_id(row)), retunes.newest(session, [_target_id(row)])
    # A change of hardware gives the tuning target a new key: what is recommended now is stored under that one.
    now = best.get_target(session, row.project_id, case.superseded_by) if case and case.superseded_by else None
    return _combine(
        row, case, proposal, again.get(_target_id(row)), _first_times(session, [row]), _decisions(session, row), now
    )


def _target_id(row: RecommendationRow) -> tuple[str, str]:
    return row.project_id, row.target_key


def _combine(
    row: RecommendationRow,
    case: TuningTargetRow | None,
    proposal: RecommendationRow | None,
    again: RetuneRow | None,
    first: Mapping[str, datetime],
    decisions: tuple[ShownDecision, ...] = (),
    now: TuningTargetRow | None = None,
) -> Recommended:
    """Combine database rows into a recommendation. `first`: times of the original recommendations. `now`: the tuning
    target under its present key, which a change of hardware replaces."""
    is_recommended = row.state is RecommendationState.RECOMMENDED
    recommended = now.recommended if now is not None else case.recommended if case is not None else None
    is_superseded = case is not None and case.superseded_by is not None
    is_too_busy = is_recommended and row.answer.result.verdict is Verdict.TOO_BUSY
    renewed = row.answer.renewed
    return Recommended(
        recommendation_id=row.id,
        target_key=row.target_key,
        state=row.state.value,
        tone="quiet" if is_superseded else "warn" if is_too_busy else _TONES[row.state],
        result=row.answer.result,
        renewed=renewed,
        renewed_at=first.get(renewed.recommendation_id) if renewed is not None else None,
        again=_again(again) if again is not None else None,
        is_superseded=is_recommended and is_superseded,
        newer=_newer(row, proposal) if is_recommended else None,
        is_too_busy=is_too_busy,
        is_pinned=is_recommended and case is not None and case.is_pinned,
        recommended_study=recommended.study_id if recommended is not None and recommended.id != row.id else None,
        stale_fields=tuple(case.changed_fields)
        if is_recommended and case and case.freshness == Freshness.STALE
        else (),
        actions=_actions(row, case),
        decisions=decisions,
    )


def _again(retune: RetuneRow) -> LatestRetune:
    is_over = retune.state is RetuneState.ENDED
    return LatestRetune(
        words=retune_words.newest_outcome(retune.state, retune.outcome),
        why=retune.reason or "",
        is_over=is_over,
        at=retune.ended_at or retune.started_at or retune.created_at,
        study_id=retune.search_study_id or retune.challenge_study_id,
    )


def _first_times(session: Session, rows: Sequence[RecommendationRow]) -> dict[str, datetime]:
    ids = [row.answer.renewed.recommendation_id for row in rows if row.answer.renewed is not None]
    return study_recommendations.times(session, ids)


def _newer(row: RecommendationRow, proposal: RecommendationRow | None) -> Proposal | None:
    # An older proposal was made against an earlier recommendation, and would be a step back.
    if proposal is None or proposal.created_at < row.created_at:
        return None
    return Proposal(proposal.study_id, proposal.answer.result.best.tokens_per_s_per_gpu, proposal.created_at)


def _actions(row: RecommendationRow, case: TuningTargetRow | None) -> tuple[tuple[str, str], ...]:
    match row.state:
        case RecommendationState.PROPOSED:
            return ("approve", "Approve"), ("reject", "Reject")
        case RecommendationState.RECOMMENDED:
            return (("unpin", "Unpin"),) if case is not None and case.is_pinned else (("pin", "Pin"),)
        case RecommendationState.RETIRED | RecommendationState.REJECTED:
            return (("rollback", "Roll back to this"),)
        case _:
            assert_never(row.state)


def _decisions(session: Session, row: RecommendationRow) -> tuple[ShownDecision, ...]:
    rows = history.decisions(session, row.project_id, row.target_key, None, _MOST_DECISIONS)
    return tuple(_decision(decision, row) for decision in rows)


def _decision(decision: DecisionRow, row: RecommendationRow) -> ShownDecision:
    is_about_this = decision.recommendation_id == row.id
    text = DECISION_TEXTS[decision.action]
    is_too_busy = is_about_this and row.answer.result.verdict is Verdict.TOO_BUSY
    if is_too_busy and decision.action is DecisionAction.RECOMMENDED:
        text = f"recommended for now: too busy, {TOO_BUSY_STATE}"
    by = decision.by if decision.key_id is None else f"{decision.by} ({decision.key_id})"
    return ShownDecision(decision.created_at, text, by, decision.note, is_about_this)

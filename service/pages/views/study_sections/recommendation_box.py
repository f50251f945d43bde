"""Words of a recommendation's box: what training jobs get now, and whether the answer behind it is decided."""

from dataclasses import dataclass

from shardtune.api_schemas.recommendations.best import RecommendationState
from shardtune.api_schemas.studies.study_result import Contender, Verdict
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE
from shardtune.service.pages.views.recommendation import Recommended
from shardtune.service.pages.views.study_sections.next_step import is_open

_TARGET = "training jobs with this model, workload and cluster"
_OPEN_VERDICTS = {
    Verdict.TOO_BUSY: (
        "low confidence",
        f"Too busy: {TOO_BUSY_STATE}. Until that is decided",
    ),
    Verdict.UNDECIDED: ("medium confidence", "The pairs did not decide. Until another study does"),
}
"""Confidence in a recommendation whose verdict is still open, with the reason for that confidence, by verdict."""
_OPEN_NOTE = ", although its verdict is open"
_NOT_COMPARED = ("medium confidence", "No other configuration was compared")


@dataclass(frozen=True)
class RecommendationBox:
    """Badge and sentence of a recommendation."""

    tone: str
    badge: str
    sentence: str
    study_id: str = ""
    """Id of the other study whose answer training jobs get; empty if they get this study's answer, or none."""
    is_open: bool = False
    """Whether further runs may decide the verdict; if so, the page proposes them before an approval."""


def recommendation_box(recommended: Recommended, best: Contender) -> RecommendationBox:
    """Describe the recommendation on the page of a study whose answer is `best`."""
    tone, other = recommended.tone, recommended.recommended_study or ""
    if recommended.is_superseded:
        text = "Training jobs get the answer of another study, measured on the current hardware and software."
        return RecommendationBox(tone, "measured again since", text if other else "It was measured again since.", other)
    if recommended.state != "recommended":
        verdict_is_open = is_open(recommended.result)
        text = _not_recommended(other)
        if recommended.state == RecommendationState.PROPOSED:
            text += f" Approving this answer recommends {best.description}{_OPEN_NOTE if verdict_is_open else ''}."
        return RecommendationBox(tone, recommended.state, text, other, verdict_is_open)
    if recommended.result.verdict in _OPEN_VERDICTS and not _was_confirmed(recommended):
        verdict, has_pairs = recommended.result.verdict, is_open(recommended.result)
        confidence, reason = _OPEN_VERDICTS[verdict] if has_pairs else _NOT_COMPARED
        # An answer from other hardware or software never has more confidence.
        confidence = "low confidence" if recommended.stale_fields else confidence
        sentence = f"{reason}{',' if has_pairs else ':'} {_TARGET} get {best.description} with {confidence}."
        if verdict is Verdict.TOO_BUSY:
            sentence += " Jobs that ask for more confidence get no answer."
        return RecommendationBox("warn", f"for now, {confidence}", sentence)
    pinned = ", even after a faster one is found" if recommended.is_pinned else ""
    return RecommendationBox(tone, "recommended", f"Shardtune recommends {best.description} to {_TARGET}{pinned}.")


def _not_recommended(other: str) -> str:
    if other:
        return f"Shardtune recommends the answer of another study to {_TARGET}."
    return "There is no recommendation for this model, workload and cluster yet: this project requires approval."


def _was_confirmed(recommended: Recommended) -> bool:
    return recommended.renewed is not None and recommended.renewed.verdict is Verdict.CONFIRMED

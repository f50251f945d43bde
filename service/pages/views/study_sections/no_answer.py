"""Words of a study that failed without an answer: one sentence, and the figures behind it."""

from collections.abc import Collection
from dataclasses import dataclass

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState

_MEMORY_FAILURES = {"oom", "over_limit"}
"""Kinds of failures of trials that needed more memory than there was."""


@dataclass(frozen=True)
class NoAnswer:
    """Sentence about a study that failed, and the rest of its reason."""

    sentence: str
    """Sentence that replaces the answer's; empty if the study's own reason is short."""
    details: str
    """Further text, which begins with a capital letter; empty without any."""
    is_folded: bool = False
    """Whether the sentence says enough, so that the page folds the details."""


def no_answer(study: Study, failure_kinds: Collection[str], usable_gib: float) -> NoAnswer:
    """Describe why a study failed. `failure_kinds`: kinds of failures of its trials; `usable_gib`: memory that a rank
    may use."""
    if study.state is not StudyState.FAILED:
        return NoAnswer("", "")
    if study.reason_code != StudyReasonCode.NOTHING_FEASIBLE or not study.reason:
        return NoAnswer("", _capitalised(study.reason_details))
    if set(failure_kinds) <= _MEMORY_FAILURES and (failure_kinds or study.rejected):
        sentence = (
            f"No answer: every configuration considered needs more memory than a rank may use ({memory(usable_gib)})."
        )
        return NoAnswer(sentence, _capitalised(study.reason), is_folded=True)
    return NoAnswer("No answer: no configuration can be trained here.", _capitalised(study.reason))


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]

"""Words of a study that failed without an answer: one sentence, and the figures behind it."""

from collections.abc import Collection
from dataclasses import dataclass

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.failures import FailureKind

_MEMORY_FAILURES = {FailureKind.OOM, FailureKind.OVER_LIMIT}
"""Kinds of trial failures which mean that the trial needed more memory than was available."""


@dataclass(frozen=True)
class NoAnswer:
    """Sentence that says why a study failed, and further details of the reason."""

    sentence: str
    """Sentence that the page shows in place of an answer; empty if the study's own reason is short."""
    details: str
    """Rest of the reason, which begins with a capital letter; empty if there is no more to say."""
    is_folded: bool = False
    """Whether the sentence alone says enough; if so, the page shows the details folded."""


def no_answer(
    study: Study,
    failure_kinds: Collection[str],
    usable_gib: float,
    least_needed_gib: float | None = None,
    lacks_host_memory: bool = False,
) -> NoAnswer:
    """Describe why a study failed. `failure_kinds`: kinds of failures of its trials; `usable_gib`: memory that a rank
    may use; `least_needed_gib`: the least that any configuration is predicted to need of a rank, None if not known;
    `lacks_host_memory`: whether a configuration was rejected because it needs more memory of its host."""
    if study.state is not StudyState.FAILED:
        return NoAnswer("", "")
    if study.reason_code != StudyReasonCode.NOTHING_FEASIBLE or not study.reason:
        return NoAnswer("", _capitalised(study.reason_details))
    if set(failure_kinds) <= _MEMORY_FAILURES and (failure_kinds or study.rejected):
        # A trial that ended out of memory has shown that the prediction is too low.
        figures = memory(usable_gib)
        if not failure_kinds and least_needed_gib is not None:
            least = memory(least_needed_gib, usable_gib)
            figures = f"{memory(usable_gib, least_needed_gib)}; the smallest needs {least}"
        sentence = f"No answer: every configuration considered needs more memory than a rank may use ({figures})."
        # Of a run that ended out of memory, it is not known whether its rank or its host had too little.
        if lacks_host_memory or FailureKind.OOM in failure_kinds:
            sentence = f"No answer: every configuration considered needs more memory than is available (a rank may use {figures})."
        return NoAnswer(sentence, _capitalised(study.reason), is_folded=True)
    return NoAnswer("No answer: no configuration can be trained here.", _capitalised(study.reason))


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]

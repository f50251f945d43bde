"""Whether the baseline of a study's result is the configuration that its user trains with today."""

from textwrap import shorten

from shardtune.api_schemas.studies.study import Study

_LONGEST_REASON = 160
"""Maximum number of characters of a failure's message; the trial shows it whole."""


def is_replaced(study: Study) -> bool:
    """Whether the user's baseline could not be the result's."""
    return study.result is not None and study.result.replaced_baseline is not None


def why_replaced(study: Study) -> str:
    """Sentence that names the reason why the user's baseline was replaced, and by what; empty where it was not."""
    result = study.result
    if result is None or result.replaced_baseline is None:
        return ""
    reason = shorten(result.replaced_baseline, _LONGEST_REASON, placeholder=" …").rstrip(".")
    return f"Your baseline could not be compared here ({reason}); {result.baseline.description} stood in for it."

"""Whether the baseline of a study's result is the configuration that its user trains with today."""

from textwrap import shorten

from shardtune.api_schemas.studies.study import Study

_LONGEST_REASON = 160
"""Maximum number of characters of a failure's message in the sentence about a replaced baseline. The trial's page
shows the whole message."""


def is_replaced(study: Study) -> bool:
    """Whether the baseline in a study's result is not the user's, because the user's baseline could not be compared."""
    return study.result is not None and study.result.replaced_baseline is not None


def why_replaced(study: Study) -> str:
    """Return a sentence that says why the user's baseline was replaced, and by which one; empty if it was not
    replaced."""
    result = study.result
    if result is None or result.replaced_baseline is None:
        return ""
    reason = shorten(result.replaced_baseline, _LONGEST_REASON, placeholder=" …").rstrip(".")
    return f"Your baseline could not be compared here ({reason}); {result.baseline.description} stood in for it."

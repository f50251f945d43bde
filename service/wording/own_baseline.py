"""Whether the baseline of a study's result is the configuration that its user trains with today."""

from textwrap import shorten

from shardtune.api_schemas.studies.study import Study

_LONGEST_REASON = 160
"""Maximum number of characters of a failure's message here; the trial's page shows the whole message."""


def is_replaced(study: Study) -> bool:
    """Whether another baseline replaced the user's in a study's result, because the user's could not be compared."""
    return study.result is not None and study.result.replaced_baseline is not None


def why_replaced(study: Study) -> str:
    """Return a sentence that says why the user's baseline was replaced, and by what; empty where it was not
    replaced."""
    result = study.result
    if result is None or result.replaced_baseline is None:
        return ""
    reason = shorten(result.replaced_baseline, _LONGEST_REASON, placeholder=" …").rstrip(".")
    return f"Your baseline could not be compared here ({reason}); {result.baseline.description} stood in for it."

"""Whether the baseline of a study's result is the configuration that its user trains with today."""

from shardtune.api_schemas.studies.study import Study
from shardtune.tuner.verdict.ranking import REPLACED_BASELINE


def is_replaced(study: Study) -> bool:
    """Whether the user's baseline could not be the result's, which names the reason in a note."""
    return study.result is not None and any(note.startswith(REPLACED_BASELINE) for note in study.result.notes)

"""Whether the baseline of a study's result is the configuration that its user trains with today."""

from shardtune.api_schemas.studies.study import Study


def is_replaced(study: Study) -> bool:
    """Whether the user's baseline could not be the result's."""
    return study.result is not None and study.result.replaced_baseline is not None

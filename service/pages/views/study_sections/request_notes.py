"""Notes about how the service read a study's request: its baseline file, its precision, and what it assumed."""

from shardtune.api_schemas.studies.study import Study
from shardtune.service.studies.changes.user_file import file_format
from shardtune.service.wording import own_baseline


def request_notes(study: Study) -> tuple[str, ...]:
    """Return notes that say how the service interpreted a study's request, such as its baseline file; empty if nothing
    needed interpretation."""
    name = file_format(study)
    notes = () if name is None else (f"Your baseline was read as {name}.{_as_configuration(study)}",)
    return (*notes, *study.warnings)


def _as_configuration(study: Study) -> str:
    if study.result is None:
        return " It is trial 0."
    if own_baseline.is_replaced(study):
        return f" {own_baseline.why_replaced(study)}"
    return f" It is trial {study.result.baseline.trial_number}: {study.result.baseline.description}."

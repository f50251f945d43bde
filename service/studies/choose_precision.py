"""Choose the precision of a new study: the precision that its user states, else that of the baseline's configuration
file, else the device's.
"""

from collections.abc import Sequence

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner import baseline


def stated_precision(request: StudyRequest) -> tuple[Precision | None, str | None]:
    """Return the precision that a study's request states, or else its baseline implies; None if neither does. With it
    comes a note if the precision comes from the baseline.
    """
    if request.workload.precision is not None:
        return request.workload.precision, None
    return baseline.implied_precision(request.baseline, request.workload.adapter) or (None, None)


def choose_precision(request: StudyRequest, devices: Sequence[DeviceDtypes]) -> tuple[Precision, tuple[str, ...]]:
    """Choose the precision in which a study trains on these devices; returns the precision with notes for the user."""
    # Stated first: `auto` would train the same file with other dtypes on another GPU.
    stated, baseline_note = stated_precision(request)
    precision, note = decide(stated, devices)
    is_considered = precision.name in request.consider and request.workload.float8 is None
    considered = f"consider ({precision.name}): the study trains in it, so it is not compared with itself"
    return precision, tuple(filter(None, [baseline_note, note, considered if is_considered else None]))

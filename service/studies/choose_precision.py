"""Decide the precision of a new study: the stated one, else that of its baseline's tool, else the device's."""

from collections.abc import Sequence

from shardtune.api_schemas.studies.study import StudyRequest
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner import baseline


def stated_precision(request: StudyRequest) -> tuple[Precision | None, str | None]:
    """Precision that the request states, if any, with a note if its baseline implies it."""
    if request.workload.precision is not None:
        return request.workload.precision, None
    return baseline.implied_precision(request.baseline) or (None, None)


def choose_precision(request: StudyRequest, devices: Sequence[DeviceDtypes]) -> tuple[Precision, tuple[str, ...]]:
    """Precision on these devices, with notes for the user."""
    # Stated first: `auto` would train the same file with other dtypes on another GPU.
    stated, baseline_note = stated_precision(request)
    precision, note = decide(stated, devices)
    return precision, tuple(filter(None, [baseline_note, note]))

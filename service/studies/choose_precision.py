"""The precision that a new study trains: the stated one, else that of its baseline's own tool, else the device's."""

from collections.abc import Sequence

from shardtune.api_schemas.studies.study import StudyRequest
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner import baseline


def stated_precision(request: StudyRequest) -> tuple[Precision | None, str | None]:
    """What the request says of it, if anything, and a note where its baseline says it."""
    if request.workload.precision is not None:
        return request.workload.precision, None
    return baseline.implied_precision(request.baseline) or (None, None)


def choose_precision(request: StudyRequest, devices: Sequence[DeviceDtypes]) -> tuple[Precision, tuple[str, ...]]:
    """The precision on these devices, and what its user should know of it."""
    stated, of_baseline = stated_precision(request)
    precision, note = decide(stated, devices)
    return precision, tuple(filter(None, [of_baseline, note]))

"""Decide which workers can train in float8."""

from shardtune.api_schemas.machines.hardware import Offer
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.float8 import CONSIDERED, FLOAT8_EXTRA, FLOAT8_PACKAGE
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import invalid


def trains_float8(offer: Offer, workload: WorkloadRequest) -> bool:
    """Whether a worker can train with the workload's float8 recipe; true if the workload does not use float8."""
    return workload.float8 is None or workload.float8 in offer.float8


def lacking_recipes(offer: Offer, request: StudyRequest) -> list[str]:
    """Names of the float8 recipes that a study compares and a worker cannot train."""
    return [name for name in request.consider if name in CONSIDERED and CONSIDERED[name] not in offer.float8]


def check_float8(request: StudyRequest, worker: WorkerRow) -> None:
    """Reject a study that trains or compares float8 on a worker that cannot train in float8.

    Raises:
        Invalid: names the field, what the worker lacks, and the remedy.
    """
    for field, value in _stated(request):
        if CONSIDERED.get(value, value) in worker.offer.float8:
            continue
        _check_device(field, value, DeviceDtypes.from_offer(worker.offer))
        raise invalid(
            field,
            value,
            f"{field} ({value!r}) needs {FLOAT8_PACKAGE}, which worker {worker.name} lacks; install "
            f"shardtune[{FLOAT8_EXTRA}] there and restart it, or leave out float8",
        )


def check_devices(request: StudyRequest, devices: list[DeviceDtypes]) -> None:
    """Reject a study in float8 if its GPUs do not support float8, as far as their data types are known.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    for field, value in _stated(request):
        for device in devices:
            _check_device(field, value, device)


def _stated(request: StudyRequest) -> list[tuple[str, str]]:
    """Fields of a study's request that ask for float8, each with its value."""
    stated = [("workload.float8", request.workload.float8)] if request.workload.float8 is not None else []
    return [*stated, *(("consider", name) for name in request.consider if name in CONSIDERED)]


def _check_device(field: str, value: str, device: DeviceDtypes) -> None:
    # CPU ranks emulate float8, so that a study of CPU ranks tells what it costs in training.
    if device.has_float8:
        return
    raise invalid(
        field,
        value,
        f"{field} ({value!r}) needs GPUs with float8 (compute capability 8.9), and {device.name} has {device.native}; leave "
        "out float8",
    )

"""Decide which workers have the package of a study's optimizer."""

from shardtune.api_schemas.machines.hardware import Offer
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.optimizers import OPTIMIZERS, OptimizerSchema
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import invalid


def trains_optimizer(offer: Offer, workload: WorkloadRequest) -> bool:
    """Whether a worker can train with the workload's optimizer. Optimizers that torch contains need no further package."""
    return _has(offer, workload.optimizer)


def lacking_recipes(offer: Offer, request: StudyRequest) -> list[str]:
    """Names of the optimizers that a study compares and for which a worker lacks the package."""
    return [name for name in request.consider if name in OPTIMIZERS and not _has(offer, OPTIMIZERS[name])]


def check_optimizers(request: StudyRequest, worker: WorkerRow) -> None:
    """Reject a study whose optimizer, or an optimizer that it compares, needs a package that the worker lacks.

    Raises:
        Invalid: names the field, the package and the remedy.
    """
    considered = [OPTIMIZERS[name] for name in request.consider if name in OPTIMIZERS]
    for field, optimizer in (
        ("workload.optimizer", request.workload.optimizer),
        *(("consider", optimizer) for optimizer in considered),
    ):
        if not _has(worker.offer, optimizer):
            raise invalid(
                field,
                optimizer.kind,
                f"{field} ({optimizer.kind!r}) needs {optimizer.package}, which worker {worker.name} lacks; install "
                f"shardtune[{optimizer.extra}] there and restart it, or use adamw",
            )


def _has(offer: Offer, optimizer: OptimizerSchema) -> bool:
    return optimizer.package is None or optimizer.kind in offer.optimizers

"""Decide which workers can train a study's adapter."""

from shardtune.api_schemas.machines.hardware import Offer
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.db.tables.studies import WorkerRow
from shardtune.service.http.errors import invalid


def trains_adapter(offer: Offer, workload: WorkloadRequest) -> bool:
    """Whether a worker can train the workload's adapter. Workers of older releases would train all weights instead."""
    return workload.adapter is None or workload.adapter.kind in offer.adapters


def check_adapter(workload: WorkloadRequest, worker: WorkerRow) -> None:
    """Reject a study whose adapter the worker cannot train.

    Raises:
        Invalid: names the adapters that the worker has, and the remedy.
    """
    if trains_adapter(worker.offer, workload):
        return
    assert workload.adapter is not None
    trained_kinds = ", ".join(worker.offer.adapters)
    remedy = (
        f"install peft there (it trains {trained_kinds})"
        if trained_kinds
        else "upgrade it to this release, with peft installed"
    )
    raise invalid(
        "workload.adapter",
        workload.adapter.kind,
        f"adapter ({workload.adapter.kind!r}) is not trained by worker {worker.name}; {remedy}, or leave out adapter",
    )

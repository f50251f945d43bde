"""Decide which workers can train a study's adapter."""

from shardtune.api_schemas.machines.hardware import Offer
from shardtune.api_schemas.training.adapters import DORA
from shardtune.api_schemas.training.quantization import QLORA, QUANTIZATION_PACKAGE
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import invalid


def trains_adapter(offer: Offer, workload: WorkloadRequest) -> bool:
    """Whether a worker can train the workload's adapter. Older workers do not know adapters, quantised weights or DoRA: they
    would train all weights instead, leave the frozen weights unquantised, or train plain LoRA.
    """
    return workload.adapter is None or workload.adapter.requirement in offer.adapters


def check_adapter(workload: WorkloadRequest, worker: WorkerRow) -> None:
    """Reject a study whose adapter the worker cannot train.

    Raises:
        Invalid: names the adapters that the worker has, and the remedy.
    """
    if trains_adapter(worker.offer, workload):
        return
    assert workload.adapter is not None
    trained_kinds = ", ".join(worker.offer.adapters)
    has_lora = workload.adapter.kind in worker.offer.adapters
    if workload.adapter.requirement == DORA and has_lora:
        raise invalid(
            "workload.adapter.dora",
            True,
            f"adapter ({workload.adapter.describe()}) is not trained by worker {worker.name}, whose release trains {trained_kinds}; "
            "upgrade it to this release, or leave out dora",
        )
    if workload.adapter.requirement == QLORA and has_lora:
        raise invalid(
            "workload.adapter.quantization",
            getattr(workload.adapter, "quantization", None),
            f"adapter ({workload.adapter.describe()}) needs {QUANTIZATION_PACKAGE}, which worker {worker.name} lacks; install "
            "shardtune[8bit] there and restart it, or leave out quantization",
        )
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

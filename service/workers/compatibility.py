"""Decide which worker can run which study."""

from shardtune.api_schemas.machines.fingerprints import Effect
from shardtune.api_schemas.machines.hardware import Cluster, Offer
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.training.float8 import CONSIDERED, FLOAT8_EXTRA
from shardtune.api_schemas.training.optimizers import OPTIMIZERS
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.workers import offered_float8, offered_optimizers
from shardtune.service.workers.hardware_shape import has_same_shape
from shardtune.service.workers.offered_adapters import trains_adapter
from shardtune.service.workers.offered_float8 import trains_float8
from shardtune.service.workers.offered_models import allows_model
from shardtune.service.workers.offered_optimizers import trains_optimizer
from shardtune.tuner.freshness.fingerprints import changes, stale_fields

# Vendors print 80 GB where NVML reports 79.6 GiB, or 93.1 GiB where there are 94; a study may state either.
_MEMORY_TOLERANCE = 1.05
"""Factor by which the host memory of a study's cluster may exceed the memory that a worker reports, since both
figures are rounded.
"""


def can_begin_waiting_study(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a study that waits for a suitable worker could begin on this worker."""
    return (
        worker.project_id in (None, study.project_id)
        and not worker.is_draining
        and has_hardware(worker.offer, study.cluster, any_host_memory=isinstance(study.spec.cluster, str))
        and can_train_all(worker.offer, study.spec)
    )


def lacks_packages(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker has the hardware and the model code for a study, but lacks packages for its workload or for the
    recipes (numerical formats and optimizers) that it compares.
    """
    is_named = isinstance(study.spec.cluster, str)
    return (
        has_hardware(worker.offer, study.cluster, any_host_memory=is_named)
        and allows_model(worker.offer, study.spec.model)
        and not can_train_all(worker.offer, study.spec)
    )


def has_hardware(offer: Offer, cluster: Cluster, *, any_host_memory: bool = False) -> bool:
    """Whether a worker has the hardware of a cluster, or more devices of the same kind. With `any_host_memory`, the
    memory of the hosts is not compared, because a study that gives only a short name such as `8xh100` says nothing
    about it.
    """
    available = offer.cluster
    if not has_same_shape(available, cluster) or _leaves_to_smaller_workers(offer, cluster):
        return False
    slack = 1.0 if cluster.device == "cpu" else _MEMORY_TOLERANCE
    has_host_memory = cluster.host_memory_gib <= available.host_memory_gib * _MEMORY_TOLERANCE
    return cluster.memory_gib <= available.memory_gib * slack and (has_host_memory or any_host_memory)


def can_train_all(offer: Offer, spec: StudyRequest) -> bool:
    """Whether a worker can execute all runs of a study, including the last ones, which compare recipes (numerical
    formats and optimizers).
    """
    return (
        _trains_workload(offer, spec.workload) and allows_model(offer, spec.model) and not lacking_recipes(offer, spec)
    )


def lacking_recipes(offer: Offer, spec: StudyRequest) -> list[str]:
    """Names of the recipes (numerical formats and optimizers) that a study compares and for which a worker lacks a
    package.
    """
    return [*offered_float8.lacking_recipes(offer, spec), *offered_optimizers.lacking_recipes(offer, spec)]


def _trains_workload(offer: Offer, workload: WorkloadRequest) -> bool:
    """Whether a worker has the packages and devices that the workload's adapter, optimizer and float8 need."""
    return trains_adapter(offer, workload) and trains_optimizer(offer, workload) and trains_float8(offer, workload)


def can_run(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker may run a study: it has the study's hardware, and its measurements can be compared with those
    that the study has already.
    """
    return (
        _is_in_scope(worker, study)
        and (study.system_study is None or study.system_study.worker_id in (None, worker.id))
        and first_run_obstacle(worker, study) is None
        and not changed_fields(worker, study)
        and allows_model(worker.offer, study.spec.model)
        and _trains_workload(worker.offer, study.spec.workload)
    )


def first_run_obstacle(worker: WorkerRow, study: StudyRow) -> str | None:
    """Reason why a worker with the study's kind of hardware may not execute the study's first run, whose worker
    determines the study's fingerprint (hardware and software versions). None if it may, or if the study has been
    measured before.
    """
    if study.fingerprint_key is not None or not _is_in_scope(worker, study):
        return None
    return _hardware_or_package_obstacle(worker, study)


def waiting_obstacle(worker: WorkerRow, study: StudyRow) -> str | None:
    """Reason why a waiting study does not begin on a worker with its kind of hardware. None if it could begin, or if
    the worker has other hardware.
    """
    if not _is_in_scope(worker, study) or worker.is_draining:
        return None
    return _hardware_or_package_obstacle(worker, study)


def _hardware_or_package_obstacle(worker: WorkerRow, study: StudyRow) -> str | None:
    if lacking := lacking_recipes(worker.offer, study.spec):
        # One worker runs a whole block of recipes, and its measurements must compare with those of the first run.
        extras = ",".join(dict.fromkeys(map(_extra, lacking)))
        return f"lacks packages of consider ({', '.join(lacking)}); install shardtune[{extras}] there and restart it"
    # A smaller part of a GPU, or a host with less memory, would not be what the study predicts for.
    is_named = study.state is StudyState.WAITING and isinstance(study.spec.cluster, str)
    if study.cluster.device == "cpu" or has_hardware(worker.offer, study.cluster, any_host_memory=is_named):
        return None
    return (
        f"has {describe(worker.offer.cluster)}, more than 5 % less memory than the study predicts for "
        f"({describe(study.cluster)}); restore it, or start a new study"
    )


def _extra(recipe: str) -> str:
    """Extra of `shardtune` that installs the package of a recipe (numerical format or optimizer)."""
    return FLOAT8_EXTRA if recipe in CONSIDERED else str(OPTIMIZERS[recipe].extra)


def fingerprint_differs(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker has suitable hardware for a study, but a fingerprint (hardware and software versions) that makes
    its measurements incomparable.
    """
    return _is_in_scope(worker, study) and bool(changed_fields(worker, study))


def is_rejected(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker with the study's kind of hardware still gets none of its runs. `rejection_reason` returns the
    reason.
    """
    return fingerprint_differs(worker, study) or first_run_obstacle(worker, study) is not None


def changed_fields(worker: WorkerRow, study: StudyRow) -> tuple[str, ...]:
    """Fingerprint fields (hardware and software versions) in which a worker differs from a study, so that measurements
    would not be comparable.
    """
    if study.fingerprint_key == worker.fingerprint_key or study.fingerprint is None:
        return ()
    return stale_fields(study.fingerprint.value, worker.offer.fingerprint, study.cluster.nodes)


def _is_in_scope(worker: WorkerRow, study: StudyRow) -> bool:
    is_ours = worker.project_id in (None, study.project_id)
    return (
        is_ours
        and has_same_shape(worker.offer.cluster, study.cluster)
        and not _leaves_to_smaller_workers(worker.offer, study.cluster)
    )


def _leaves_to_smaller_workers(offer: Offer, cluster: Cluster) -> bool:
    """Whether a worker leaves a study of this size to workers with fewer devices on the same host, so that its own
    devices stay free for larger studies.
    """
    # On a divided host a small study on a large partition would block devices that a large study needs.
    return offer.host_partition is not None and cluster.world_size < offer.host_partition.least_ranks


def rejection_reason(worker: WorkerRow, study: StudyRow) -> StudyReason:
    """Reason why a worker may not execute runs of a study: an obstacle to the study's first run, or each field of the
    worker's fingerprint (hardware and software versions) that makes its measurements incomparable with the study's."""
    if (obstacle := first_run_obstacle(worker, study)) is not None:
        return waiting_reason(worker, obstacle)
    assert study.fingerprint is not None
    differences = changes(study.fingerprint.value, worker.offer.fingerprint, study.cluster.nodes)
    described = ", ".join(
        f"{item.field} {item.now} instead of {item.was}" for item in differences if item.effect == Effect.STALE
    )
    return waiting_reason(
        worker, f"has {described}, and measurements on both do not compare; restore it, or start a new study"
    )


def waiting_reason(
    worker: WorkerRow, cause: str, code: StudyReasonCode = StudyReasonCode.WAITS_FOR_WORKER
) -> StudyReason:
    """Reason that is stored with a study that waits for another worker, because this worker cannot execute its runs."""
    return StudyReason(code=code, text=f"waiting for a worker: {worker.name} {cause}")


def may_explain_wait(study: StudyRow, reason: StudyReason) -> bool:
    """Whether a reason why a study waits may be stored with it. Any other reason stays, except that a worker which ends
    too soon is no news once another one cannot execute the runs at all."""
    # Demand counts a study of the first kind: an autoscaler would start workers that get no run, one after the other.
    is_replaced = reason.code is StudyReasonCode.WAITS_FOR_WORKER
    return study.reason is None or (is_replaced and study.reason_code == StudyReasonCode.WORKER_ENDS_TOO_SOON)


def describe(cluster: Cluster) -> str:
    """Describe the size, device kind and memory of a cluster in words."""
    unit = "CPU ranks" if cluster.device == "cpu" else cluster.gpu
    nodes = f"{cluster.nodes} nodes × " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} × {unit}, {cluster.memory_gib:g} GiB each, host {cluster.host_memory_gib:g} GiB"

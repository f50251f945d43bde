"""Decide which worker can run which study."""

from collections.abc import Sequence
from dataclasses import replace

from shardtune.api_schemas.machines.fingerprints import Effect
from shardtune.api_schemas.machines.hardware import Cluster, Offer
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import Invalid, invalid, invalid_from_value_error, suggest_names
from shardtune.service.workers import offered_float8, offered_optimizers
from shardtune.service.workers.hardware_shape import has_same_shape
from shardtune.service.workers.offered_adapters import trains_adapter
from shardtune.service.workers.offered_float8 import trains_float8
from shardtune.service.workers.offered_optimizers import trains_optimizer
from shardtune.tuner.freshness.fingerprints import changes, stale_fields
from shardtune.tuner.prediction import catalogue

# Vendors print 80 GB where NVML reports 79.6 GiB, or 93.1 GiB where there are 94; a study may state either.
_MEMORY_TOLERANCE = 1.05
"""Factor by which the memory figures of a study's cluster may exceed those of a worker."""


def resolve_cluster(spec: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow | None]:
    """Find the cluster that a study names, and a live worker that has this cluster; no worker if the study is allowed
    to wait for one.

    Raises:
        Invalid: no worker has the cluster, its name is unknown, or `local` is ambiguous.
    """
    cluster, may_wait = named_cluster(spec), spec.wait_for_worker_s is not None
    if cluster is None:
        return _resolve_local(spec, live)
    is_named = isinstance(spec.cluster, str)
    suitable = [worker for worker in live if has_hardware(worker.offer, cluster, any_host_memory=is_named)]
    allowed_worker = next((worker for worker in suitable if _can_train_all(worker.offer, spec)), None)
    if allowed_worker is not None or may_wait:
        return with_host_memory(cluster, allowed_worker, is_named=is_named), allowed_worker
    if suitable:
        # No worker allows the model's code, or trains the adapter: return the first, which the rejection then names.
        return with_host_memory(cluster, suitable[0], is_named=is_named), suitable[0]
    if not live:
        raise _no_worker(cluster, "no worker is registered; start one with `shardtune worker`")
    location = f"over as many hosts (--nodes {cluster.nodes})" if _needs_more_hosts(cluster, live) else "there"
    raise _no_worker(cluster, f"registered: {_list_workers(live)}; start a worker {location}, or change the cluster")


def named_cluster(spec: StudyRequest) -> Cluster | None:
    """Cluster that a study's request contains in full or by name. None: the request names `local`."""
    if isinstance(spec.cluster, Cluster):
        return spec.cluster
    if spec.cluster == "local":
        return None
    try:
        return catalogue.parse_cluster(spec.cluster)
    except ValueError as error:
        raise invalid_from_value_error("cluster", error) from error


def _resolve_local(spec: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow]:
    if not live and spec.wait_for_worker_s is not None:
        reason = "a study that waits for a worker (wait_for_worker_s) needs its cluster spelt out, such as 8xh100"
        raise _no_worker("local", reason)
    local = local_worker(live)
    worker = next((w for w in live if _can_train_all(w.offer, spec)), local)
    return worker.offer.cluster, worker


def can_begin_waiting_study(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a study that waits for a worker could begin on this worker."""
    return (
        worker.project_id in (None, study.project_id)
        and not worker.is_draining
        and has_hardware(worker.offer, study.cluster, any_host_memory=isinstance(study.spec.cluster, str))
        and _can_train_all(worker.offer, study.spec)
    )


def lacks_packages(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker has the hardware and the model of a study, and not the packages of its workload and of the recipes that
    it considers."""
    is_named = isinstance(study.spec.cluster, str)
    return (
        has_hardware(worker.offer, study.cluster, any_host_memory=is_named)
        and allows_model(worker.offer, study.spec.model)
        and not _can_train_all(worker.offer, study.spec)
    )


def _needs_more_hosts(cluster: Cluster, live: Sequence[WorkerRow]) -> bool:
    return cluster.nodes > max(worker.offer.cluster.nodes for worker in live)


def local_worker(live: Sequence[WorkerRow]) -> WorkerRow:
    """Worker whose cluster the name `local` means.

    Raises:
        Invalid: there is no worker, or their clusters differ.
    """
    if not live:
        raise _no_worker("local", "no worker is registered; start one with `shardtune worker`")
    if len({worker.offer.cluster.content_key() for worker in live}) > 1:
        raise _no_worker("local", f"it could mean any of: {_list_workers(live)}; spell the cluster out")
    return live[0]


def has_hardware(offer: Offer, cluster: Cluster, *, any_host_memory: bool = False) -> bool:
    """Whether a worker has the hardware of a cluster, or more devices of the same kind. `any_host_memory`: the cluster is
    only named, such as `8xh100`, which says nothing about the host's memory.
    """
    available = offer.cluster
    if not has_same_shape(available, cluster) or _leaves_to_smaller_workers(offer, cluster):
        return False
    slack = 1.0 if cluster.device == "cpu" else _MEMORY_TOLERANCE
    has_host_memory = cluster.host_memory_gib <= available.host_memory_gib * _MEMORY_TOLERANCE
    return cluster.memory_gib <= available.memory_gib * slack and (has_host_memory or any_host_memory)


def with_host_memory(cluster: Cluster, worker: WorkerRow | None, *, is_named: bool) -> Cluster:
    """Return a named cluster, such as `8xh100`, with the worker's host memory where the name assumed more."""
    if worker is None or not is_named:
        return cluster
    present = min(cluster.host_memory_gib, worker.offer.cluster.host_memory_gib)
    return cluster.model_copy(update={"host_memory_gib": present})


def host_memory_notes(named: Cluster | None, present: Cluster) -> tuple[str, ...]:
    """Note of a study whose named cluster took over less host memory than the name assumed."""
    if named is None or present.host_memory_gib >= named.host_memory_gib:
        return ()
    return (
        f"host memory: {present.host_memory_gib:,.0f} GiB a node, which the worker has; the cluster's name assumes "
        f"{named.host_memory_gib:,.0f}",
    )


def dtypes_of(cluster: Cluster, live: Sequence[WorkerRow]) -> list[DeviceDtypes]:
    """Data types that the devices of a cluster support natively, from live workers with this cluster, else from the
    catalogue.
    """
    # A worker that has not probed its device reports none, and so the catalogue's answer for the GPU's name is used.
    probed = [
        DeviceDtypes.from_offer(worker.offer)
        for worker in live
        if has_hardware(worker.offer, cluster, any_host_memory=True)
    ]
    named = catalogue.dtypes_of(cluster)
    return [replace(dtypes, native=dtypes.native or named.native) for dtypes in probed] or [named]


def check_model(model: ModelSpec, worker: WorkerRow) -> None:
    """Reject a study whose model architecture the worker's transformers release lacks, or whose code the worker's owner
    has not allowed.

    Raises:
        Invalid: lists similar architectures, or the allowed code.
    """
    if model.is_own:
        _check_own_code(model, worker)
    else:
        _check_model_type(str(model.model_type), worker)


def _check_own_code(model: ModelSpec, worker: WorkerRow) -> None:
    if allows_model(worker.offer, model):
        return
    kind, name, allowed, option = (
        ("entry_point", model.entry_point, worker.offer.own_models, f"--allow-model {model.entry_point}")
        if model.entry_point is not None
        else ("script", model.script, worker.offer.own_scripts, f"--allow-script {model.script}=COMMAND")
    )
    allowed_list = ", ".join(allowed) or "none"
    raise invalid(
        f"model.{kind}",
        name,
        f"{kind} ({name!r}) is not allowed on worker {worker.name}; allowed there: {allowed_list}. "
        f"The worker's owner can allow it with {option}",
        code="model_not_allowed",
    )


def allows_model(offer: Offer, model: ModelSpec) -> bool:
    """Whether the worker's owner allows the study's own model code; architectures of transformers are always
    allowed.
    """
    if model.entry_point is not None:
        return model.entry_point in offer.own_models
    return model.script is None or model.script in offer.own_scripts


def _can_train_all(offer: Offer, spec: StudyRequest) -> bool:
    """Whether a worker can train a study from its first run to its last, which compares the considered recipes."""
    return (
        _trains_workload(offer, spec.workload) and allows_model(offer, spec.model) and not lacking_recipes(offer, spec)
    )


def lacking_recipes(offer: Offer, spec: StudyRequest) -> list[str]:
    """Names of the recipes that a study considers and a worker lacks a package for."""
    return [*offered_float8.lacking_recipes(offer, spec), *offered_optimizers.lacking_recipes(offer, spec)]


def _trains_workload(offer: Offer, workload: WorkloadRequest) -> bool:
    """Whether a worker has what the workload's adapter, optimizer and float8 need."""
    return trains_adapter(offer, workload) and trains_optimizer(offer, workload) and trains_float8(offer, workload)


def _check_model_type(model_type: str, worker: WorkerRow) -> None:
    """Reject a model architecture that the worker's transformers release does not contain."""
    # An empty list means that the worker did not report its architectures, so nothing can be rejected.
    known_types = worker.inventory.causal_lm_types
    if known_types and model_type not in known_types:
        hint = suggest_names(
            model_type, known_types, f"it knows {len(known_types)}, such as {', '.join(sorted(known_types)[:8])}"
        )
        raise invalid(
            "model.config.model_type",
            model_type,
            f"model_type ({model_type!r}) is not a causal language model of the transformers on worker {worker.name} "
            f"({worker.offer.fingerprint.transformers}); {hint}",
            code="unknown_model_type",
        )


def can_run(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker may run a study: it has the hardware, and its measurements are comparable with the study's."""
    return (
        _is_in_scope(worker, study)
        and (study.system_study is None or study.system_study.worker_id in (None, worker.id))
        and first_run_obstacle(worker, study) is None
        and not changed_fields(worker, study)
        and allows_model(worker.offer, study.spec.model)
        and _trains_workload(worker.offer, study.spec.workload)
    )


def first_run_obstacle(worker: WorkerRow, study: StudyRow) -> str | None:
    """Cause for which a worker of the study's hardware may not take its first run, which sets the study's fingerprint;
    None if it may, or if the study has been measured."""
    if study.fingerprint_key is not None or not _is_in_scope(worker, study):
        return None
    return _hardware_or_package_obstacle(worker, study)


def waiting_obstacle(worker: WorkerRow, study: StudyRow) -> str | None:
    """Cause for which a study that waits does not begin on a worker of its hardware's kind; None for other workers."""
    if not _is_in_scope(worker, study) or worker.is_draining:
        return None
    return _hardware_or_package_obstacle(worker, study)


def _hardware_or_package_obstacle(worker: WorkerRow, study: StudyRow) -> str | None:
    if lacking := lacking_recipes(worker.offer, study.spec):
        # One worker runs a whole block of recipes, and its measurements must compare with those of the first run.
        return f"lacks packages of consider ({', '.join(lacking)}); install shardtune[fp8,8bit] there and restart it"
    # A smaller part of a GPU, or a host with less memory, would not be what the study predicts for.
    is_named = study.state is StudyState.WAITING and isinstance(study.spec.cluster, str)
    if study.cluster.device == "cpu" or has_hardware(worker.offer, study.cluster, any_host_memory=is_named):
        return None
    return (
        f"has {describe(worker.offer.cluster)}, more than 5 % less memory than the study predicts for "
        f"({describe(study.cluster)}); restore it, or start a new study"
    )


def fingerprint_differs(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker has suitable hardware for a study, but a fingerprint (hardware and software versions) that makes
    its measurements incomparable.
    """
    return _is_in_scope(worker, study) and bool(changed_fields(worker, study))


def is_rejected(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a worker of the study's hardware gets none of its runs for a cause that `rejection_reason` tells."""
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
    """Whether a worker leaves a study of this size to workers with fewer devices of the same host."""
    # On a divided host a small study on a large partition would block devices that a large study needs.
    return offer.host_partition is not None and cluster.world_size < offer.host_partition.least_ranks


def rejection_reason(worker: WorkerRow, study: StudyRow) -> StudyReason:
    """Reason why a worker may not take a study's first run, or why its measurements would not be comparable with the
    study's, with each differing fingerprint field."""
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


def waiting_reason(worker: WorkerRow, cause: str) -> StudyReason:
    """Reason of a study that waits for another worker, since this one cannot execute its runs."""
    text = f"waiting for a worker: {worker.name} {cause}"
    return StudyReason(code=StudyReasonCode.WAITS_FOR_WORKER, text=text)


def describe(cluster: Cluster) -> str:
    """Describe the size, device kind and memory of a cluster in words."""
    unit = "CPU ranks" if cluster.device == "cpu" else cluster.gpu
    nodes = f"{cluster.nodes} nodes × " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} × {unit}, {cluster.memory_gib:g} GiB each, host {cluster.host_memory_gib:g} GiB"


def _list_workers(live: Sequence[WorkerRow]) -> str:
    return "; ".join(f"{worker.name} with {describe(worker.offer.cluster)}" for worker in live)


def _no_worker(cluster: Cluster | str, reason: str) -> Invalid:
    shown = cluster if isinstance(cluster, str) else describe(cluster)
    return invalid("cluster", shown, f"cluster ({shown}) is not offered by any live worker: {reason}", code="no_worker")

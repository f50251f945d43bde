"""Which worker can run which study."""

from collections.abc import Sequence
from dataclasses import replace

from shardtune.api_schemas.machines.fingerprints import Effect
from shardtune.api_schemas.machines.hardware import Cluster, Offer
from shardtune.api_schemas.studies.study import StudyRequest
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.db.tables.studies import StudyRow, WorkerRow
from shardtune.service.http.errors import Invalid, close_matches, from_value_error, invalid
from shardtune.tuner.freshness.fingerprints import changes, stale_fields
from shardtune.tuner.prediction import catalogue

_MEMORY_TOLERANCE = 1.05
"""Vendors print 80 GB where NVML reports 79.6 GiB or 93.1 GiB where there are 94; a study may say either."""
_REJECTION = "waiting for a worker: "


def resolve_cluster(spec: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow | None]:
    """The cluster the study means, and a live worker that has it; None where the study is to wait for one.

    Raises:
        Invalid: nobody has it, nobody knows its name, or `local` could mean several.
    """
    cluster, may_wait = named_cluster(spec), spec.wait_for_worker_s is not None
    if cluster is None:
        return _resolve_local(spec, live)
    offering = [worker for worker in live if offers(worker.offer, cluster)]
    allowing = next((worker for worker in offering if has_model(worker.offer, spec.model)), None)
    if allowing is not None or may_wait:
        return cluster, allowing
    if offering:
        # Where none allows the model's code, the first one's list is what the rejection shows.
        return cluster, offering[0]
    if not live:
        raise _no_worker(cluster, "no worker is registered; start one with `shardtune worker`")
    start = f"start a worker over as many hosts (--nodes {cluster.nodes})" if _is_wider(cluster, live) else ""
    raise _no_worker(cluster, f"registered: {_listed(live)}; {start or 'start a worker there'}, or change the cluster")


def named_cluster(spec: StudyRequest) -> Cluster | None:
    """The cluster that is spelt out or named; None: `local`."""
    if isinstance(spec.cluster, Cluster):
        return spec.cluster
    if spec.cluster == "local":
        return None
    try:
        return catalogue.parse_cluster(spec.cluster)
    except ValueError as error:
        raise from_value_error("cluster", error) from error


def _resolve_local(spec: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow]:
    if not live and spec.wait_for_worker_s is not None:
        reason = "a study that waits for a worker (wait_for_worker_s) needs its cluster spelt out, such as 8xh100"
        raise _no_worker("local", reason)
    local = local_worker(live)
    worker = next((w for w in live if has_model(w.offer, spec.model)), local)
    return worker.offer.cluster, worker


def could_begin(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether a study that waits for a worker could begin on this one."""
    return (
        worker.project_id in (None, study.project_id)
        and not worker.is_draining
        and offers(worker.offer, study.cluster)
        and has_model(worker.offer, study.spec.model)
    )


def _is_wider(wanted: Cluster, live: Sequence[WorkerRow]) -> bool:
    return wanted.nodes > max(worker.offer.cluster.nodes for worker in live)


def local_worker(live: Sequence[WorkerRow]) -> WorkerRow:
    """The worker whose cluster `local` means.

    Raises:
        Invalid: there is none, or they have different ones.
    """
    if not live:
        raise _no_worker("local", "no worker is registered; start one with `shardtune worker`")
    if len({worker.offer.cluster.content_key() for worker in live}) > 1:
        raise _no_worker("local", f"it could mean any of: {_listed(live)}; spell the cluster out")
    return live[0]


def offers(offer: Offer, cluster: Cluster) -> bool:
    """Whether a worker has the hardware of a cluster, or more of the same."""
    has = offer.cluster
    if not same_shape(has, cluster) or _leaves(offer, cluster):
        return False
    slack = 1.0 if cluster.device == "cpu" else _MEMORY_TOLERANCE
    return (
        cluster.memory_gib <= has.memory_gib * slack
        and cluster.host_memory_gib <= has.host_memory_gib * _MEMORY_TOLERANCE
    )


def dtypes_of(cluster: Cluster, live: Sequence[WorkerRow]) -> list[DeviceDtypes]:
    """What the workers that have a cluster compute in; where none does or one has not looked, what its name tells."""
    found = [DeviceDtypes.of_worker(worker.offer) for worker in live if offers(worker.offer, cluster)]
    named = catalogue.dtypes_of(cluster)
    return [replace(one, native=one.native or named.native) for one in found] or [named]


def check_model(model: ModelSpec, worker: WorkerRow) -> None:
    """Reject an architecture the worker's transformers does not have, and code that its owner has not allowed.

    Raises:
        Invalid: with close matches, or with the list of what is allowed.
    """
    if model.is_own:
        _check_own(model, worker)
    else:
        _check_model_type(str(model.model_type), worker)


def _check_own(model: ModelSpec, worker: WorkerRow) -> None:
    if has_model(worker.offer, model):
        return
    kind, name, allowed, option = (
        ("entry_point", model.entry_point, worker.offer.own_models, f"--allow-model {model.entry_point}")
        if model.entry_point is not None
        else ("script", model.script, worker.offer.own_scripts, f"--allow-script {model.script}=COMMAND")
    )
    listed = ", ".join(allowed) or "none"
    raise invalid(
        f"model.{kind}",
        name,
        f"{kind} ({name!r}) is not allowed on worker {worker.name}; allowed there: {listed}. "
        f"The worker's owner can allow it with {option}",
        code="model_not_allowed",
    )


def has_model(offer: Offer, model: ModelSpec) -> bool:
    """Whether the worker's owner allows the study's own code; anything of transformers is."""
    if model.entry_point is not None:
        return model.entry_point in offer.own_models
    return model.script is None or model.script in offer.own_scripts


def _check_model_type(model_type: str, worker: WorkerRow) -> None:
    """An empty list knows nothing."""
    known = worker.inventory.causal_lm_types
    if known and model_type not in known:
        hint = close_matches(model_type, known, f"it knows {len(known)}, such as {', '.join(sorted(known)[:8])}")
        raise invalid(
            "model.config.model_type",
            model_type,
            f"model_type ({model_type!r}) is not a causal language model of the transformers on worker {worker.name} "
            f"({worker.offer.fingerprint.transformers}); {hint}",
            code="unknown_model_type",
        )


def may_run(worker: WorkerRow, study: StudyRow) -> bool:
    """Whether runs of the study may go to the worker: the hardware, and what was measured on before."""
    return (
        _serves(worker, study)
        and (study.system_study is None or study.system_study.worker_id in (None, worker.id))
        and not changed_fields(worker, study)
        and has_model(worker.offer, study.spec.model)
    )


def fingerprint_differs(worker: WorkerRow, study: StudyRow) -> bool:
    """The worker has the hardware's shape, but its measurements would not compare with the study's."""
    return _serves(worker, study) and bool(changed_fields(worker, study))


def changed_fields(worker: WorkerRow, study: StudyRow) -> tuple[str, ...]:
    """Fields in which the worker differs from where the study was measured, so that its runs would not compare."""
    if study.fingerprint_key == worker.fingerprint_key or study.fingerprint is None:
        return ()
    return stale_fields(study.fingerprint.value, worker.offer.fingerprint, study.cluster.nodes)


def _serves(worker: WorkerRow, study: StudyRow) -> bool:
    is_ours = worker.project_id in (None, study.project_id)
    return is_ours and same_shape(worker.offer.cluster, study.cluster) and not _leaves(worker.offer, study.cluster)


def _leaves(offer: Offer, cluster: Cluster) -> bool:
    """Whether studies of this size are for workers with fewer devices of the same host."""
    return offer.share is not None and cluster.world_size < offer.share.least_ranks


def rejection(worker: WorkerRow, study: StudyRow) -> str:
    """Why, field by field."""
    assert study.fingerprint is not None
    found = changes(study.fingerprint.value, worker.offer.fingerprint, study.cluster.nodes)
    changed = ", ".join(
        f"{item.field} {item.now} instead of {item.was}" for item in found if item.effect == Effect.STALE
    )
    return (
        f"{_REJECTION}{worker.name} has {changed}, and measurements on both do not compare; "
        "restore it, or start a new study"
    )


def is_rejection(reason: str | None) -> bool:
    """Whether a study's reason was written by `rejection`."""
    return reason is not None and reason.startswith(_REJECTION)


def same_shape(has: Cluster, wanted: Cluster) -> bool:
    """Whether hardware of this kind and size runs trials of a cluster, memory aside."""
    same_device = has.device == wanted.device and (
        has.device == "cpu" or has.gpu.strip().casefold() == wanted.gpu.strip().casefold()
    )
    # A smaller trial on a larger machine would leave ranks idle that share its links, so the node must be used in full
    # as soon as there are several of them.
    fits = wanted.gpus_per_node <= has.gpus_per_node if wanted.nodes == 1 else wanted.gpus_per_node == has.gpus_per_node
    return same_device and wanted.nodes <= has.nodes and fits


def describe(cluster: Cluster) -> str:
    """Size, kind and memory, in words."""
    unit = "CPU ranks" if cluster.device == "cpu" else cluster.gpu
    nodes = f"{cluster.nodes} nodes × " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} × {unit}, {cluster.memory_gib:g} GiB each, host {cluster.host_memory_gib:g} GiB"


def _listed(live: Sequence[WorkerRow]) -> str:
    return "; ".join(f"{worker.name} with {describe(worker.offer.cluster)}" for worker in live)


def _no_worker(cluster: Cluster | str, reason: str) -> Invalid:
    shown = cluster if isinstance(cluster, str) else describe(cluster)
    return invalid("cluster", shown, f"cluster ({shown}) is not offered by any live worker: {reason}", code="no_worker")

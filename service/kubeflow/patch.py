"""JSON patch (RFC 6902) that completes a TrainJob with a recommendation. What the job states itself stays."""

import json
from collections.abc import Mapping
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies.rank_environment import THREADS, variables
from shardtune.service.kubeflow.recommendation import JobRecommendation
from shardtune.service.kubeflow.wish import GPU_RESOURCES, PREFIX, NotRecommendable
from shardtune.tuner.export.launchers.gpu_names import extended_resource
from shardtune.tuner.export.launchers.trainjob import literal_value

REASON_ANNOTATION, CONFIG_ANNOTATION = f"{PREFIX}recommendation", f"{PREFIX}configuration"
CONFIG_VARIABLE = "SHARDTUNE_CONFIGURATION"
"""Name of the environment variable that gives the training process its configuration as JSON."""
Operation = dict[str, Any]


def operations(job: Mapping[str, Any], recommended: JobRecommendation) -> list[Operation]:
    """JSON patch operations that add to a TrainJob: the recommended numbers of nodes and processes, the devices,
    environment variables, and the reason for the recommendation.

    Raises:
        NotRecommendable: `spec.trainer` of the job is malformed, or requests other GPUs than the recommended cluster
            has.
    """
    trainer = job["spec"].get("trainer")
    added: list[Operation] = [_add(("spec", "trainer"), {})] if trainer is None else []
    trainer = {} if trainer is None else trainer
    lists_and_maps = {"env": list, "resourcesPerNode": Mapping}
    if not isinstance(trainer, Mapping) or any(
        not isinstance(trainer.get(name), kind | None) for name, kind in lists_and_maps.items()
    ):
        raise NotRecommendable("spec.trainer is malformed; correct it")
    cluster = recommended.cluster
    sizes = {"numNodes": cluster.nodes, "numProcPerNode": cluster.gpus_per_node}
    added += [_add(("spec", "trainer", name), value) for name, value in sizes.items() if trainer.get(name) is None]
    added += _devices(trainer.get("resourcesPerNode"), cluster)
    added += _environment(trainer.get("env"), recommended)
    # The job has annotations: without them nothing was asked for.
    annotations = {REASON_ANNOTATION: recommended.reason, CONFIG_ANNOTATION: _as_json(recommended)}
    return added + [_add(("metadata", "annotations", name), value) for name, value in annotations.items()]


def _devices(own: Mapping[str, Any] | None, cluster: Cluster) -> list[Operation]:
    """JSON patch operations that request the GPUs (or CPUs) of a node for a TrainJob; empty if the job requests them
    already.
    """
    path = ("spec", "trainer", "resourcesPerNode")
    kind, name = ("requests", "cpu") if cluster.device == "cpu" else ("limits", extended_resource(cluster.gpu))
    count = str(cluster.gpus_per_node)
    if not own:
        return [_add(path, {kind: {name: count}})]
    stated = [own.get(part) for part in ("limits", "requests")]
    names = {stated_name for part in stated if isinstance(part, Mapping) for stated_name in part}
    if name in names:
        return []
    if names & set(GPU_RESOURCES):
        raise NotRecommendable(f"spec.trainer.resourcesPerNode states other GPUs than {name}; leave devices open")
    if isinstance(own.get(kind), Mapping):
        return [_add((*path, kind, name), count)]
    return [_add((*path, kind), {name: count})]


def _environment(own: list[Any] | None, recommended: JobRecommendation) -> list[Operation]:
    """JSON patch operations that add the configuration's environment variables, except those that the job itself sets."""
    config, cluster = recommended.config, recommended.cluster
    values = variables(config, {}, 0, cluster.gpus_per_node)
    if not config.threads:
        # By the cores of the node, which nobody knows here.
        values.pop(THREADS)
    values[CONFIG_VARIABLE] = _as_json(recommended)
    taken = {entry.get("name") for entry in own or () if isinstance(entry, Mapping)}
    new = [{"name": name, "value": literal_value(value)} for name, value in values.items() if name not in taken]
    if own is None:
        return [_add(("spec", "trainer", "env"), new)]
    return [_add(("spec", "trainer", "env", "-"), entry) for entry in new]


def _as_json(recommended: JobRecommendation) -> str:
    config = recommended.config.model_dump(mode="json", exclude_defaults=True)
    strategy = {"kind": recommended.config.backend, **config.get("strategy", {})}
    return json.dumps({**config, "strategy": strategy}, sort_keys=True)


def _add(path: tuple[str, ...], value: object) -> Operation:
    # RFC 6901: ~ and / in a name are escaped, in this order.
    pointer = "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in path)
    return {"op": "add", "path": pointer, "value": value}

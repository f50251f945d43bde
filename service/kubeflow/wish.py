"""Wish of a TrainJob, by its label and annotations, and the sizes that it states itself.

A TrainJob opts in by the label `shardtune.io/recommend: "true"`. Facts about TrainJobs are from Kubeflow Trainer 2.3
(`trainer.kubeflow.org/v1alpha1`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.tuner.prediction import catalogue

PREFIX = "shardtune.io/"
RECOMMEND_LABEL = f"{PREFIX}recommend"
MODEL_ANNOTATION, WORKLOAD_ANNOTATION, CLUSTERS_ANNOTATION = (
    f"{PREFIX}model", f"{PREFIX}workload", f"{PREFIX}clusters",
)  # fmt: skip
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_LONGEST_NAME = 300
"""Maximum number of characters of a model's name."""
_LONGEST_WORKLOAD = 50_000
"""Maximum number of characters of a workload's text, because it becomes part of a query string in a request to the
service.
"""
_OTHER_DEVICES = re.compile(
    r"[^/]*gpu[^/]*/.+|[^/]+/(mig-.*|.*(gpu|gaudi|neuron|ascend).*|(.*[^a-z])?[tn]pus?)", re.IGNORECASE
)
"""Pattern of extended resource names in Kubernetes that mean accelerators or parts of them: MIG slices, Intel's GPUs
(`gpu.intel.com/xe`), Gaudi, TPUs, Trainium (`aws.amazon.com/neuroncore`), Ascend. Network cards do not match."""


class NotRecommendable(Exception):
    """Error: no recommendation for a TrainJob; the message says why, and what to change."""


@dataclass(frozen=True)
class Sizing:
    """Numbers of nodes and processes that a TrainJob specifies itself; a number that is None is left open by the job."""

    nodes: int | None
    processes_per_node: int | None

    def allows(self, cluster: Cluster) -> bool:
        """Whether a cluster has the numbers of nodes and processes that the TrainJob specifies."""
        return self.nodes in (None, cluster.nodes) and self.processes_per_node in (None, cluster.gpus_per_node)


@dataclass(frozen=True)
class Wish:
    """Request of a TrainJob for a recommendation, read from its annotations."""

    model: str
    """Name of a preset, or id of a model on the Hugging Face hub."""
    workload: Mapping[str, Any]
    """Workload as in a study."""
    clusters: tuple[str, ...]
    """Clusters to choose from, in their short form such as `8xh100`, those with the fewest GPUs first."""


def is_asked(job: Mapping[str, Any]) -> bool:
    """Whether a TrainJob has the label that asks for a recommendation."""
    labels = _mapping(_mapping(job.get("metadata")).get("labels"))
    return labels.get(RECOMMEND_LABEL) == "true"


def read_wish(job: Mapping[str, Any], offered: Sequence[str]) -> Wish:
    """Read from a TrainJob what it wants a recommendation for. `offered` lists the clusters that the operator allows.

    Raises:
        NotRecommendable: an annotation is missing or wrong, or no offered cluster has the job's own sizes.
    """
    annotations = _mapping(_mapping(job.get("metadata")).get("annotations"))
    model = annotations.get(MODEL_ANNOTATION)
    if not isinstance(model, str) or not 0 < len(model) <= _LONGEST_NAME or model.lstrip().startswith("{"):
        raise NotRecommendable(
            f"annotation {MODEL_ANNOTATION} ({model!r:.60}) must be a preset such as llama-3.1-8b, or a Hugging Face id; set it"
        )
    clusters = _asked_clusters(annotations.get(CLUSTERS_ANNOTATION), offered)
    sizing = own_sizing(job)
    allowed = [name for name in clusters if sizing.allows(catalogue.parse_cluster(name))]
    if not allowed:
        raise NotRecommendable(
            f"spec.trainer ({_sizing_words(sizing)}) is the size of none of the clusters {', '.join(clusters)}; "
            "leave it open, or choose one of them"
        )
    allowed.sort(key=lambda name: catalogue.parse_cluster(name).world_size)
    return Wish(model, _workload(annotations.get(WORKLOAD_ANNOTATION)), tuple(allowed))


def own_sizing(job: Mapping[str, Any]) -> Sizing:
    """Numbers of nodes and processes that a TrainJob specifies itself. If it gives no number of processes, the number
    of its GPUs per node is used.
    """
    trainer = _mapping(_mapping(job.get("spec")).get("trainer"))
    resources = _mapping(trainer.get("resourcesPerNode"))
    _check_devices(resources)
    devices = [
        _gpu_count(name, _mapping(resources.get(kind)).get(name))
        for kind in ("limits", "requests")
        for name in GPU_RESOURCES
    ]
    stated = [_whole_number(trainer.get("numProcPerNode")), *devices]
    return Sizing(_whole_number(trainer.get("numNodes")), next((count for count in stated if count is not None), None))


def _gpu_count(name: str, quantity: object) -> int | None:
    """Number of GPUs in a resource quantity; None if the TrainJob states none."""
    count = _whole_number(quantity)
    if count is None and quantity is not None:
        raise NotRecommendable(
            f"spec.trainer.resourcesPerNode: {name} ({quantity!r:.60}) must be a whole number of GPUs, such as 8; correct it"
        )
    return count


def _check_devices(resources: Mapping[str, Any]) -> None:
    """Reject a TrainJob that already requests devices, such as MIG slices, in a way that does not allow whole GPUs to
    be added.
    """
    malformed = [kind for kind in ("limits", "requests") if not isinstance(resources.get(kind), Mapping | None)]
    if malformed:
        raise NotRecommendable(f"spec.trainer.resourcesPerNode.{malformed[0]} is malformed; correct it")
    named = [name for kind in ("limits", "requests") for name in _mapping(resources.get(kind))]
    others = [name for name in named if _OTHER_DEVICES.fullmatch(name) and name not in GPU_RESOURCES]
    if others or resources.get("claims"):
        stated = "claims" if resources.get("claims") else others[0]
        raise NotRecommendable(
            f"spec.trainer.resourcesPerNode states {stated!r:.60}, beside which no whole GPUs can be added; leave devices open"
        )


def _asked_clusters(asked: object, offered: Sequence[str]) -> list[str]:
    if asked is None:
        return list(offered)
    names = list(dict.fromkeys(name.strip() for name in str(asked).split(",")))
    unknown = [name for name in names if name not in offered]
    if unknown:
        raise NotRecommendable(
            f"annotation {CLUSTERS_ANNOTATION} ({', '.join(unknown)!r:.100}) names clusters that are not offered here; "
            f"choose from {', '.join(offered)}"
        )
    return names


def _workload(text: object) -> Mapping[str, Any]:
    example = '{"sequence_length": 4096, "global_batch": 128}'
    try:
        workload = json.loads(text) if isinstance(text, str) and len(text) <= _LONGEST_WORKLOAD else None
    except (ValueError, RecursionError):
        workload = None
    if not isinstance(workload, dict):
        raise NotRecommendable(
            f"annotation {WORKLOAD_ANNOTATION} ({text!r:.60}) must be a workload as JSON, such as {example}; set it"
        )
    try:
        WorkloadRequest.model_validate(workload)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, mistake["loc"]))
        raise NotRecommendable(
            f"annotation {WORKLOAD_ANNOTATION}: {field}: {mistake['msg']:.300}; correct it"
        ) from None
    return workload


def _sizing_words(sizing: Sizing) -> str:
    stated = {"numNodes": sizing.nodes, "processes or GPUs per node": sizing.processes_per_node}
    return ", ".join(f"{name} {value}" for name, value in stated.items() if value is not None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole_number(value: object) -> int | None:
    """Whole number in a field or in a resource quantity of Kubernetes; None if it contains none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10 else None

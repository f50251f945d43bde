"""Export for Kubeflow Trainer: `trainjob.yaml`, a TrainJob and a ConfigMap with the exported files, for `kubectl apply`.

Facts about Trainer are from its source (2.3): its torch plugin sets `PET_*` on each node, and rejects a TrainJob that
sets them itself. `runtimePatches` is in the API since 2.2.
"""

from collections.abc import Mapping
from typing import Any

from shardtune.tuner.export.launchers import launch_facts
from shardtune.tuner.export.launchers.gpu_names import kubernetes_notes, kubernetes_resource
from shardtune.tuner.export.launchers.launch_facts import SET_ME
from shardtune.tuner.export.launchers.yaml_document import launcher_file
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trial_rendering import Rendered

RELEASE = "Kubeflow Trainer 2.3"
FILE = "trainjob.yaml"
_SHARED_MEMORY = "/dev/shm"  # nosec B108 # a volume of the pod
_FOLDER = "/shardtune"
"""Path of the folder with the exported files in the container."""
_RUNTIME = "torch-distributed"
"""Name of a training runtime that Kubeflow Trainer installs itself."""
_SHM_SIZE = "16Gi"
"""Size of shared memory that the file requests for NCCL and data loaders; by default containers have 64 MiB."""


def render(source: ExportSource, files: Mapping[str, str]) -> Rendered:
    """Render the exported file for Kubeflow Trainer; `files`: content of the exported files that a node needs."""
    lossy, name = _notes(source), launch_facts.task_name(source)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": dict(files),
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": _RUNTIME},
            "trainer": {"image": SET_ME, **trainer_fields(source), "command": _command(source)},
            "runtimePatches": [_mounts(name)],
        },
    }
    text = launcher_file(source, RELEASE, f"kubectl apply -f {FILE}", lossy, [config_map, job])
    return Rendered({FILE: text}, RELEASE, lossy, source.config)


def trainer_fields(source: ExportSource) -> dict[str, Any]:
    """Fields of a TrainJob's section `trainer` that follow from the measured configuration: nodes, processes, devices,
    environment."""
    cluster = source.cluster
    if source.on_cpu:
        resources = {"requests": {"cpu": str(cluster.gpus_per_node)}}
    else:
        resources = {"limits": {kubernetes_resource(source): str(cluster.gpus_per_node)}}
    return {
        "numNodes": cluster.nodes,
        "numProcPerNode": cluster.gpus_per_node,
        "resourcesPerNode": resources,
        "env": [
            {"name": name, "value": literal_value(value)} for name, value in launch_facts.variables(source).items()
        ],
    }


def literal_value(value: str) -> str:
    """Escape the value of a container's environment variable, so that Kubernetes passes it on unchanged: it would
    replace `$(NAME)` by another variable's value, and reads `$$` as one dollar."""
    return value.replace("$", "$$")


def _command(source: ExportSource) -> list[str]:
    # Trainer gives the rendezvous by torchrun's variables; launch.sh reads the names that every launcher has.
    script = (
        f'cd {_FOLDER} && export MASTER_ADDR="${{PET_MASTER_ADDR:-}}" NODE_RANK="${{PET_NODE_RANK:-0}}" && '
        f"exec {launch_facts.node_command(source)}"
    )
    return ["bash", "-c", script]


def _mounts(config_map: str) -> dict[str, Any]:
    """Patch of Kubeflow's training runtime that mounts the exported files and shared memory."""
    volumes = [
        {"name": "shardtune-files", "configMap": {"name": config_map}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _SHM_SIZE}},
    ]
    container = {
        "name": "node",
        "volumeMounts": [
            {"name": "shardtune-files", "mountPath": _FOLDER, "readOnly": True},
            {"name": "shared-memory", "mountPath": _SHARED_MEMORY},
        ],
    }
    pod = {"spec": {"volumes": volumes, "containers": [container]}}
    job = {"name": "node", "template": {"spec": {"template": pod}}}
    return {
        "manager": "shardtune.io/export",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }


def _notes(source: ExportSource) -> tuple[str, ...]:
    packages = ", ".join(package for package in launch_facts.requirements(source) if package != SET_ME)
    return (
        f"image: set {SET_ME}, to an image with bash and {packages}",
        f"runtime: {_RUNTIME}, which Kubeflow Trainer brings; another needs a container named node",
        "scheduling: queues, node selectors and tolerations of your cluster are not in the file",
        *kubernetes_notes(source),
        *launch_facts.notes(source, "Kubernetes"),
    )

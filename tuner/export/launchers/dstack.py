"""Export for dstack 0.22: `train.dstack.yml`, a task for `dstack apply`."""

from collections.abc import Mapping
from typing import Any

from shardtune.tuner.export.launchers import launch_facts
from shardtune.tuner.export.launchers.gpu_names import launcher_names, shared_name_notes
from shardtune.tuner.export.launchers.launch_facts import SET_ME
from shardtune.tuner.export.launchers.yaml_document import launcher_file
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trial_rendering import Rendered

RELEASE = "dstack 0.22"
FILE = "train.dstack.yml"
_FOLDER = "/shardtune"
"""Path of the folder with the exported files in the container."""
_SHM_SIZE = "16GB"
"""Size of shared memory that the file requests for NCCL and data loaders; by default containers have 64 MB."""


def render(source: ExportSource, files: Mapping[str, str]) -> Rendered:
    """Render the exported file for dstack, which starts the training in the cloud or on a cluster."""
    lossy = _notes(source)
    nodes = {"nodes": source.cluster.nodes} if source.cluster.nodes > 1 else {}
    values: dict[str, Any] = {
        "type": "task",
        "name": launch_facts.task_name(source),
        **nodes,
        "python": launch_facts.python_version(source),
        "files": [f".:{_FOLDER}"],
        "working_dir": _FOLDER,
        "env": launch_facts.variables(source),
        "commands": [
            *launch_facts.install_commands(source),
            'export MASTER_ADDR="$DSTACK_MASTER_NODE_IP" NODE_RANK="$DSTACK_NODE_RANK"',
            launch_facts.node_command(source),
        ],
        "resources": _resources(source),
    }
    command = f"dstack apply -f {FILE}"
    return Rendered({FILE: launcher_file(source, RELEASE, command, lossy, [values])}, RELEASE, lossy, source.config)


def _resources(source: ExportSource) -> dict[str, Any]:
    cluster = source.cluster
    if source.on_cpu:
        memory = max(1, round(cluster.host_memory_gib))
        return {"cpu": f"{cluster.gpus_per_node}..", "memory": f"{memory}GB..", "gpu": 0, "shm_size": _SHM_SIZE}
    return {"gpu": f"{launcher_names(source).dstack or SET_ME}:{cluster.gpus_per_node}", "shm_size": _SHM_SIZE}


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = [
        "cloud: dstack takes a fleet or the cheapest offer that has these resources; set backends or fleets for another"
    ]
    lines.append("image: dstack's own with CUDA; set image instead of python for yours")
    if source.cluster.nodes > 1:
        lines.append("fleet: several nodes need a fleet with placement: cluster")
    names = launcher_names(source)
    if not source.on_cpu and names.dstack is None:
        lines.append(
            f"gpu: set {SET_ME} in resources.gpu; dstack has no name for {source.cluster.gpu}: {names.no_name}"
        )
    lines += shared_name_notes(source, "dstack", lambda names: names.dstack)
    return (*lines, *launch_facts.notes(source, "dstack"))

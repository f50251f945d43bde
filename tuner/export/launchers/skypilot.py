"""Export for SkyPilot 0.14: `skypilot.yaml`, a task for `sky launch` and `sky jobs launch`."""

from collections.abc import Mapping
from typing import Any

from shardtune.tuner.export.launchers import launch_facts
from shardtune.tuner.export.launchers.gpu_names import launcher_names, shared_name_notes
from shardtune.tuner.export.launchers.launch_facts import SET_ME
from shardtune.tuner.export.launchers.yaml_document import launcher_file
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trial_rendering import Rendered

RELEASE = "SkyPilot 0.14"
FILE = "skypilot.yaml"
_COMMAND = f"sky launch --cluster train {FILE}"


def render(source: ExportSource, files: Mapping[str, str]) -> Rendered:
    """Render the exported file for SkyPilot, which starts the training in the cloud or on a cluster."""
    lossy = _notes(source)
    values: dict[str, Any] = {
        "name": launch_facts.task_name(source),
        "workdir": ".",
        "num_nodes": source.cluster.nodes,
        "resources": _resources(source),
        "envs": launch_facts.variables(source),
        "setup": _setup(source),
        "run": _run(source),
    }
    return Rendered({FILE: launcher_file(source, RELEASE, _COMMAND, lossy, [values])}, RELEASE, lossy, source.config)


def _resources(source: ExportSource) -> dict[str, Any]:
    cluster = source.cluster
    if source.on_cpu:
        return {"cpus": f"{cluster.gpus_per_node}+", "memory": f"{max(1, round(cluster.host_memory_gib))}+"}
    resources: dict[str, Any] = {"accelerators": f"{launcher_names(source).skypilot or SET_ME}:{cluster.gpus_per_node}"}
    return resources | ({"network_tier": "best"} if cluster.nodes > 1 else {})


def _setup(source: ExportSource) -> str:
    version = launch_facts.python_version(source)
    commands = [
        "set -e",
        f"[ -x ~/train/bin/python ] || uv venv --python {version} ~/train",
        *launch_facts.install_commands(source, "--python ~/train/bin/python"),
    ]
    return "".join(f"{command}\n" for command in commands)


def _run(source: ExportSource) -> str:
    # The first of SkyPilot's addresses is that of the node with rank 0.
    return (
        'MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"\n'
        'export MASTER_ADDR NODE_RANK="$SKYPILOT_NODE_RANK" PYTHON="$HOME/train/bin/python"\n'
        f"exec {launch_facts.node_command(source)}\n"
    )


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = ["cloud: SkyPilot takes the cheapest that has these resources; set resources.infra for another"]
    lines.append(
        "image: SkyPilot's own; set resources.image_id (docker:IMAGE) for yours, whose packages setup then changes"
    )
    names = launcher_names(source)
    if not source.on_cpu and names.skypilot is None:
        lines.append(
            f"gpu: set {SET_ME} in resources.accelerators; SkyPilot has no name for {source.cluster.gpu}: "
            f"{names.no_name}"
        )
    lines += shared_name_notes(source, "SkyPilot", lambda names: names.skypilot)
    return (*lines, *launch_facts.notes(source, "SkyPilot"))

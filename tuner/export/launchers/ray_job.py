"""Export for Ray: `ray_job.py`, the entry point of a Ray job that starts `launch.sh` on each node of the cluster.

Ray Train is not used: the exported script starts its own process group, as under torchrun.
"""

import shlex
from collections.abc import Mapping

from shardtune.tuner.export.launchers import launch_facts
from shardtune.tuner.export.launchers.launch_facts import SET_ME
from shardtune.tuner.export.quoting import in_docstring, literal
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trial_rendering import Rendered, comment

RELEASE = "Ray 2.60"
FILE = "ray_job.py"


def render(source: ExportSource, files: Mapping[str, str]) -> Rendered:
    """Render the exported Python entry point that starts the training as a Ray job."""
    lossy = _notes(source)
    per_node = source.cluster.gpus_per_node
    text = fill(
        "ray_job.py",
        origin=source.origin,
        description=in_docstring(source.description),
        machines=in_docstring(source.machines),
        start=f"Set every {SET_ME} below, then submit it from this folder:"
        if launch_facts.is_own(source)
        else "Submit it from this folder:",
        arguments="" if launch_facts.is_own(source) else " --steps 10",
        lossy=comment(lossy, "", in_docstring),
        nodes=source.cluster.nodes,
        bundle=literal({"CPU": per_node} if source.on_cpu else {"GPU": per_node}),
        command=literal(_command(source)),
        environment=literal(launch_facts.variables(source)),
    )
    return Rendered({FILE: text}, RELEASE, lossy, source.config)


def _command(source: ExportSource) -> list[str]:
    command = launch_facts.node_command(source)
    # A command for a shell alone where it names variables.
    return ["bash", "-c", f'exec {command} "$@"', "launch"] if "$" in command else shlex.split(command)


def _notes(source: ExportSource) -> tuple[str, ...]:
    packages = ", ".join(package for package in launch_facts.requirements(source) if package != SET_ME)
    return (
        f"image: the cluster's nodes need bash and {packages}; the job installs nothing",
        *launch_facts.notes(source, "Ray"),
    )

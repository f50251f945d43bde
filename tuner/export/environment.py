"""Environment in which a configuration was measured, for each exported file: the variables that Shardtune sets, and
those set on the worker.

A worker is not trusted: a variable is set where `allowed_variables` has its name and the form of its value. Every other
one appears in a comment.
"""

import re
import shlex

from shardtune.api_schemas.strategies.rank_environment import KEPT_MEMORY, variables
from shardtune.api_schemas.training.environment_settings import by_name, setting_of
from shardtune.tuner.export.allowed_variables import is_allowed
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource

_FIRST_HOST, _NODE_RANK, _PORT = "FIRST_HOST", "N", 29500
"""Words in a header's command that stand for the first node's address and for a node's number, and the port at which
nodes meet."""


def settings(source: ExportSource) -> dict[str, str]:
    """Environment variables, by name, that the ranks need in order to run as measured."""
    worker, fingerprint = _allowed_settings(source), source.study.fingerprint
    cores = fingerprint.cpu_count if fingerprint is not None else 0
    return worker | variables(source.config, worker, cores, source.cluster.gpus_per_node)


def shell_lines(source: ExportSource) -> list[str]:
    """Lines of a shell script that set the environment variables of the measured configuration."""
    lines = ["# The environment it was measured in: threads of a rank, allocators, collectives."]
    variables_set = settings(source)
    if KEPT_MEMORY.keys() <= variables_set.keys():
        lines.append("# By itself glibc gives freed memory back to the system, and fetches it again in each step.")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables_set.items()]
    return [*lines, *(f"# {line}" for line in unset_notes(source))]


def command_prefix(source: ExportSource) -> str:
    """Assignments of the measured environment variables in shell syntax, to be put before a command on the same line."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in settings(source).items())


def export_line(source: ExportSource) -> str:
    """Line of a shell that sets the measured environment variables, for a file's comment above the command that it names.

    It needs no escaping: values have the forms of `allowed_variables`, or are numbers.
    """
    return f"export {command_prefix(source).strip()}"


def torchrun_binding(source: ExportSource) -> str:
    """Option of torchrun that binds ranks to cores; empty where ranks are not bound."""
    mode = source.config.numa_binding
    # torchrun binds ranks by their GPUs only.
    return "" if mode == "none" or source.on_cpu else f"--numa-binding={mode}"


def torchrun_options(source: ExportSource) -> str:
    """Options of torchrun in the command that a file's header names: ranks of a node, their binding to cores, and the
    rendezvous of several nodes."""
    cluster = source.cluster
    rendezvous = (
        f"--nnodes {cluster.nodes} --rdzv_id shardtune --rdzv_backend c10d --rdzv_endpoint {_FIRST_HOST}:{_PORT}"
    )
    parts = (f"--nproc_per_node {cluster.gpus_per_node}", torchrun_binding(source), rendezvous)
    return " ".join(filter(None, parts if cluster.nodes > 1 else parts[:-1]))


def node_variables(source: ExportSource) -> str:
    """Assignments in shell syntax, to be put before the command of a program that starts torchrun by itself: ranks of a
    node, and the rendezvous of several nodes."""
    cluster = source.cluster
    rendezvous = f"NNODES={cluster.nodes} NODE_RANK={_NODE_RANK} MASTER_ADDR={_FIRST_HOST} MASTER_PORT={_PORT} "
    return f"NPROC_PER_NODE={cluster.gpus_per_node} {rendezvous if cluster.nodes > 1 else ''}"


def nodes_note(source: ExportSource, command: str) -> str:
    """Note on where to run a header's command, and on the words in it that stand for the user's own values; empty for
    one node."""
    nodes = source.cluster.nodes
    if nodes == 1:
        return ""
    numbered = f", and {_NODE_RANK} the number of the node, from 0" if f"NODE_RANK={_NODE_RANK}" in command else ""
    return f"Run it on each of the {nodes} nodes; {_FIRST_HOST} is the address of the first{numbered}."


def notes(source: ExportSource) -> tuple[str, ...]:
    """Notes that tell the user which environment and core binding to set, for exported files that cannot set them."""
    return (f"environment: start the ranks with {command_prefix(source).strip()}", *notes_beside_command(source))


def notes_beside_command(source: ExportSource) -> tuple[str, ...]:
    """Notes on the environment and core binding, for exported files whose header has `export_line` above the command."""
    binding = torchrun_binding(source)
    bound = (f"environment: ranks were bound to cores as by torchrun {binding} (needs numactl)",) if binding else ()
    return (*bound, *unset_notes(source))


def unset_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on environment variables that were set on the worker, but that no exported file sets."""
    exported, recorded = _allowed_settings(source), _recorded_settings(source)
    return tuple(
        f"environment: the worker also had {name} set, to {remark(recorded[name])}"
        for name in sorted(recorded.keys() - exported)
    )


def env_file(source: ExportSource) -> str:
    """Content (lines `NAME=value`) of the file from which DeepSpeed's launcher sets environment variables on its nodes."""
    return "".join(f"{name}={value}\n" for name, value in settings(source).items())


def _allowed_settings(source: ExportSource) -> dict[str, str]:
    return {name: value for name, value in _recorded_settings(source).items() if is_allowed(name, value)}


def _recorded_settings(source: ExportSource) -> dict[str, str]:
    """Environment variables recorded on the worker, by name. The worker may be someone else's, so the values are not
    trusted."""
    fingerprint = source.study.fingerprint
    reported = by_name(fingerprint.environment or ()) if fingerprint is not None else {}
    # A worker of any make reports the names, so they are checked as the values are.
    names = [name for name in sorted(reported) if re.fullmatch(r"[A-Z][A-Z0-9_]{0,99}", name) and setting_of(name)]
    return {name: reported[name] for name in names}

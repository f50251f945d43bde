"""Environment in which a configuration was measured, for each exported file: the variables that Shardtune sets, and
those set on the worker.

A worker's values are not trusted: a value that could name a file appears in a comment and is never set.
"""

import re
import shlex

from shardtune.api_schemas.strategies.rank_environment import KEPT_MEMORY, variables
from shardtune.api_schemas.training.environment_settings import by_name, setting_of
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource

_HARMLESS = re.compile(r"[\w.,:;=+%-]{1,150}", re.ASCII)
"""Regular expression of values that are safe to set: flags, numbers and lists of them, without a path, a line end or
anything that a shell or a loader would interpret."""


_NAMES_FILES = re.compile(r"FILE|PATH|DIR|LIB|PLUGIN|PRELOAD|DUMP")
"""Regular expression of variable names whose value may name a file that a job overwrites or a library that it loads,
although the value is a plain word."""


def settings(source: ExportSource) -> dict[str, str]:
    """Environment variables to set for the ranks so that they run as measured, by name."""
    worker, fingerprint = _harmless_settings(source), source.study.fingerprint
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
    """Assignments of environment variables to place before a command on the same line."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in settings(source).items())


def torchrun_binding(source: ExportSource) -> str:
    """Option of torchrun that binds ranks to cores; empty where ranks are not bound."""
    mode = source.config.numa_binding
    # torchrun binds ranks by their GPUs only.
    return "" if mode == "none" or source.on_cpu else f"--numa-binding={mode}"


def notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the environment and core binding, for exported files that cannot set variables."""
    binding = torchrun_binding(source)
    bound = (f"environment: ranks were bound to cores as by torchrun {binding} (needs numactl)",) if binding else ()
    return (f"environment: start the ranks with {command_prefix(source).strip()}", *bound, *unset_notes(source))


def unset_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on environment variables that the worker had set and no exported file sets."""
    exported, recorded = _harmless_settings(source), _recorded_settings(source)
    return tuple(
        f"environment: the worker also had {name} set, to {recorded[name]}"
        for name in sorted(recorded.keys() - exported)
    )


def env_file(source: ExportSource) -> str:
    """Lines `NAME=value` of the file from which DeepSpeed's launcher sets environment variables on its nodes."""
    return "".join(f"{name}={value}\n" for name, value in settings(source).items())


def _harmless_settings(source: ExportSource) -> dict[str, str]:
    recorded = _recorded_settings(source)
    return {
        name: value for name, value in recorded.items() if not _NAMES_FILES.search(name) and _HARMLESS.fullmatch(value)
    }


def _recorded_settings(source: ExportSource) -> dict[str, str]:
    """Environment variables recorded on the worker, by name, their values quoted for comments."""
    fingerprint = source.study.fingerprint
    reported = by_name(fingerprint.environment or ()) if fingerprint is not None else {}
    # A worker of any make reports the names, so they are checked as the values are.
    valid = {name: value for name, value in reported.items() if re.fullmatch(r"[A-Z][A-Z0-9_]{0,99}", name)}
    return {name: remark(value) for name, value in sorted(valid.items()) if setting_of(name) is not None}

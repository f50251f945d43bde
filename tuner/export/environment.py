"""Environment in which a configuration was measured, for each file: its own variables, and those set on the worker.

The worker's values come from outside: a value that could name a file appears in a comment and is never set.
"""

import re
import shlex

from shardtune.api_schemas.strategies.rank_environment import KEPT_MEMORY, variables
from shardtune.api_schemas.training.environment_settings import by_name, setting_of
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource

_HARMLESS = re.compile(r"[\w.,:;=+%-]{1,150}", re.ASCII)
"""Pattern of flags, numbers and lists of them: no path, no line end, nothing that a shell or a loader would follow."""


_NAMES_FILES = re.compile(r"FILE|PATH|DIR|LIB|PLUGIN|PRELOAD|DUMP")
"""Pattern of variables whose value, though a plain word, would be a file that a job overwrites or a library that it
loads."""


def settings(source: ExportSource) -> dict[str, str]:
    """Variables to set for the ranks, so that they run as measured."""
    worker, fingerprint = _harmless_settings(source), source.study.fingerprint
    cores = fingerprint.cpu_count if fingerprint is not None else 0
    return worker | variables(source.config, worker, cores, source.cluster.gpus_per_node)


def shell_lines(source: ExportSource) -> list[str]:
    """Lines of a shell script that set the variables."""
    lines = ["# The environment it was measured in: threads of a rank, allocators, collectives."]
    variables_set = settings(source)
    if KEPT_MEMORY.keys() <= variables_set.keys():
        lines.append("# By itself glibc gives freed memory back to the system, and fetches it again in each step.")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables_set.items()]
    return [*lines, *(f"# {line}" for line in unset_notes(source))]


def command_prefix(source: ExportSource) -> str:
    """Assignments before a command, on its line."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in settings(source).items())


def torchrun_binding(source: ExportSource) -> str:
    """Option of torchrun that binds ranks to cores; empty where they are not bound."""
    mode = source.config.numa_binding
    # torchrun binds ranks by their GPUs only.
    return "" if mode == "none" or source.on_cpu else f"--numa-binding={mode}"


def notes(source: ExportSource) -> tuple[str, ...]:
    """Notes for files that set no variables."""
    binding = torchrun_binding(source)
    bound = (f"environment: ranks were bound to cores as by torchrun {binding} (needs numactl)",) if binding else ()
    return (f"environment: start the ranks with {command_prefix(source).strip()}", *bound, *unset_notes(source))


def unset_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on variables that the worker had set and no file sets."""
    exported, recorded = _harmless_settings(source), _recorded_settings(source)
    return tuple(
        f"environment: the worker also had {name} set, to {recorded[name]}"
        for name in sorted(recorded.keys() - exported)
    )


def env_file(source: ExportSource) -> str:
    """`NAME=value` lines, as DeepSpeed's launcher takes them to its nodes."""
    return "".join(f"{name}={value}\n" for name, value in settings(source).items())


def _harmless_settings(source: ExportSource) -> dict[str, str]:
    recorded = _recorded_settings(source)
    return {
        name: value for name, value in recorded.items() if not _NAMES_FILES.search(name) and _HARMLESS.fullmatch(value)
    }


def _recorded_settings(source: ExportSource) -> dict[str, str]:
    """Variables recorded on the worker, quoted for comments."""
    fingerprint = source.study.fingerprint
    reported = by_name(fingerprint.environment or ()) if fingerprint is not None else {}
    # A worker of any make reports the names, so they are checked as the values are.
    valid = {name: value for name, value in reported.items() if re.fullmatch(r"[A-Z][A-Z0-9_]{0,99}", name)}
    return {name: remark(value) for name, value in sorted(valid.items()) if setting_of(name) is not None}

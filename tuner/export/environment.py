"""The environment a configuration was measured in, for each file: what it sets itself, and what the worker had set.

Values of the worker are words from outside: those that could name a file are told in a comment and never set.
"""

import re
import shlex

from shardtune.api_schemas.strategies.rank_environment import KEPT_MEMORY, variables
from shardtune.api_schemas.training.environment_settings import by_name, setting_of
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource

_HARMLESS = re.compile(r"[\w.,:;=+%-]{1,150}", re.ASCII)
"""Flags, numbers and lists of them: no path, no line end, nothing that a shell or a loader would follow."""


_NAMES_FILES = re.compile(r"FILE|PATH|DIR|LIB|PLUGIN|PRELOAD|DUMP")
"""In a variable's name: its value, though a plain word, would be a file that a job writes over or a library that it loads."""


def settings(source: ExportSource) -> dict[str, str]:
    """Variables by name: to set for the ranks, so that they run as measured."""
    worker, fingerprint = _of_worker(source), source.study.fingerprint
    cores = fingerprint.cpu_count if fingerprint is not None else 0
    return worker | variables(source.config, worker, cores, source.cluster.gpus_per_node)


def shell_lines(source: ExportSource) -> list[str]:
    """For a shell script."""
    lines = ["# The environment it was measured in: threads of a rank, allocators, collectives."]
    found = settings(source)
    if KEPT_MEMORY.keys() <= found.keys():
        lines.append("# By itself glibc gives freed memory back to the system, and fetches it again in each step.")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in found.items()]
    return [*lines, *(f"# {line}" for line in untold(source))]


def command_prefix(source: ExportSource) -> str:
    """Before a command, on its line."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in settings(source).items())


def torchrun_binding(source: ExportSource) -> str:
    """Its option for the cores of the ranks; empty where they are any, and on CPU ranks, for which torchrun has none."""
    mode = source.config.numa_binding
    return "" if mode == "none" or source.on_cpu else f"--numa-binding={mode}"


def beside(source: ExportSource) -> tuple[str, ...]:
    """For files that set no variables."""
    binding = torchrun_binding(source)
    bound = (f"environment: ranks were bound to cores as by torchrun {binding} (needs numactl)",) if binding else ()
    return (f"environment: start the ranks with {command_prefix(source).strip()}", *bound, *untold(source))


def untold(source: ExportSource) -> tuple[str, ...]:
    """What the worker had set besides, and no file sets."""
    told, recorded = _of_worker(source), _recorded(source)
    return tuple(
        f"environment: the worker also had {name} set, to {recorded[name]}" for name in sorted(recorded.keys() - told)
    )


def env_file(source: ExportSource) -> str:
    """`NAME=value` lines, as DeepSpeed's launcher takes them to its nodes."""
    return "".join(f"{name}={value}\n" for name, value in settings(source).items())


def _of_worker(source: ExportSource) -> dict[str, str]:
    found = _recorded(source)
    return {
        name: value for name, value in found.items() if not _NAMES_FILES.search(name) and _HARMLESS.fullmatch(value)
    }


def _recorded(source: ExportSource) -> dict[str, str]:
    """Names are checked as well: a worker of any make says them."""
    fingerprint = source.study.fingerprint
    found = by_name(fingerprint.environment or ()) if fingerprint is not None else {}
    known = {name: value for name, value in found.items() if re.fullmatch(r"[A-Z][A-Z0-9_]{0,99}", name)}
    return {name: remark(value) for name, value in sorted(known.items()) if setting_of(name) is not None}

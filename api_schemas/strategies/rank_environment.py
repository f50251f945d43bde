"""Environment variables that a configuration sets for its ranks: the rank that measures and the exporter call the
same function."""

from collections.abc import Mapping

from shardtune.api_schemas.strategies import TrialConfig

THREADS = "OMP_NUM_THREADS"
ALLOCATOR = "PYTORCH_ALLOC_CONF"
_OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Keep freed memory (glibc's mallopt(3), bytes). By itself glibc learns from what a process has freed so far what it
returns to the system at once, and fetches again page by page in the next step: FSDP2's step of 0.16 s took 0.18 s."""


def threads_of(inherited: Mapping[str, str], cores: int, ranks: int) -> int:
    """Return the threads of a rank whose configuration names none: the worker's OMP_NUM_THREADS, else its part of
    the node's cores."""
    first = inherited.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else max(1, cores // ranks)


def variables(config: TrialConfig, inherited: Mapping[str, str], cores: int, ranks: int) -> dict[str, str]:
    """Variables by name, over what a rank inherits from its worker; `ranks` share the `cores` of a node."""
    values = {THREADS: str(config.threads or threads_of(inherited, cores, ranks))}
    if config.malloc == "keep":
        values |= KEPT_MEMORY
    if config.expandable_segments:
        # Later words of the list win over earlier ones.
        before = inherited.get(ALLOCATOR) or inherited.get(_OLD_ALLOCATOR)
        values[ALLOCATOR] = ",".join([*([before] if before else []), "expandable_segments:True"])
    if config.max_connections:
        values["CUDA_DEVICE_MAX_CONNECTIONS"] = str(config.max_connections)
    return values

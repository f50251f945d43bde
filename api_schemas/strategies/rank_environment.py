"""Environment variables that a configuration sets for its ranks, computed by the same function for measurements and
exports."""

from collections.abc import Mapping

from shardtune.api_schemas.knobs import declarations
from shardtune.api_schemas.strategies import TrialConfig

THREADS = "OMP_NUM_THREADS"
ALLOCATOR = "PYTORCH_ALLOC_CONF"
_OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Settings of glibc (mallopt(3), in bytes) that keep freed host memory in the process. By default glibc returns some of
it to the system, by rules that follow earlier frees, and the next step fetches it again page by page: a 0.16 s FSDP2
step took 0.18 s."""


def threads_of(inherited: Mapping[str, str], cores: int, ranks: int) -> int:
    """Return the number of CPU threads of a rank whose configuration states none: the worker's OMP_NUM_THREADS if set,
    otherwise the node's cores divided by its ranks."""
    first = inherited.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else max(1, cores // ranks)


def variables(config: TrialConfig, inherited: Mapping[str, str], cores: int, ranks: int) -> dict[str, str]:
    """Return the environment variables of a rank by name; they override variables that the rank inherits from the
    worker. `ranks` is the number of ranks that share the node's `cores`."""
    values = {THREADS: str(config.threads or threads_of(inherited, cores, ranks))}
    if config.malloc == "keep":
        values |= KEPT_MEMORY
    before = inherited.get(ALLOCATOR) or inherited.get(_OLD_ALLOCATOR) or ""
    # Many images set it for every process: without a word for False, both values of the knob would measure True.
    if config.expandable_segments or "expandable_segments" in before:
        # Later words of the list win over earlier ones.
        values[ALLOCATOR] = ",".join(
            [*([before] if before else []), f"expandable_segments:{config.expandable_segments}"]
        )
    return values | declarations.variables(config)

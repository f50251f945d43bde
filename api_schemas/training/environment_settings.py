"""Environment variables that change speed or memory: which there are, why they count, and what is recorded of them.

A worker records those it has set with every measurement (`Fingerprint.environment`). Secrets are not among them: only
names of this list are looked at, and none that sounds like one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

SettingKind = Literal["allocator", "collectives", "kernels", "threads", "malloc", "binding"]


class EnvironmentSetting(NamedTuple):
    """A variable, or all that begin alike."""

    name: str
    """With a `*` at the end: a prefix."""
    kind: SettingKind
    why: str
    device: Literal["cuda", "cpu"] | None
    """Where it counts fully; elsewhere a change lowers the confidence only. None: everywhere."""


SETTINGS = (
    EnvironmentSetting("PYTORCH_*", "allocator", "segments, garbage collection and splits: memory, retries", "cuda"),
    EnvironmentSetting("TORCH_NCCL_*", "collectives", "streams, priorities and watchdogs of collectives", "cuda"),
    EnvironmentSetting("NCCL_*", "collectives", "algorithms, protocols, channels and the ways they take", "cuda"),
    EnvironmentSetting("GLOO_*", "collectives", "the interface between CPU ranks", "cpu"),
    EnvironmentSetting("CUDA_DEVICE_MAX_CONNECTIONS", "collectives", "order of kernels and collectives", "cuda"),
    EnvironmentSetting("CUDA_LAUNCH_BLOCKING", "kernels", "the host waits for each kernel", "cuda"),
    EnvironmentSetting("CUDA_MODULE_LOADING", "kernels", "when kernels are loaded, and the memory they take", "cuda"),
    EnvironmentSetting("CUBLAS*", "kernels", "workspaces of matrix products: memory, choice of algorithms", "cuda"),
    EnvironmentSetting("NVIDIA_TF32_OVERRIDE", "kernels", "precision and speed of float32 products", "cuda"),
    EnvironmentSetting("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "kernels", "likewise", "cuda"),
    EnvironmentSetting("TORCHINDUCTOR_*", "kernels", "what compiled blocks become", None),
    EnvironmentSetting("ATEN_CPU_CAPABILITY", "kernels", "vector instructions of torch's own kernels", "cpu"),
    EnvironmentSetting("ONEDNN_*", "kernels", "instructions and fast-math of matrix products", "cpu"),
    EnvironmentSetting("DNNL_*", "kernels", "oneDNN's older names", "cpu"),
    EnvironmentSetting("MKL_*", "threads", "threads and instructions of matrix products", "cpu"),
    EnvironmentSetting("OMP_PLACES", "binding", "which cores the threads of a rank stay on", "cpu"),
    EnvironmentSetting("OMP_PROC_BIND", "binding", "whether they stay", "cpu"),
    EnvironmentSetting("OMP_*", "threads", "threads of a rank, and how they wait", "cpu"),
    EnvironmentSetting("KMP_*", "binding", "Intel's OpenMP: affinity, and how long threads spin", "cpu"),
    EnvironmentSetting("GOMP_*", "binding", "GNU's OpenMP: affinity, and how long threads spin", "cpu"),
    EnvironmentSetting("MALLOC_*", "malloc", "when freed memory goes back to the system, to be fetched again", "cpu"),
    EnvironmentSetting("GLIBC_TUNABLES", "malloc", "likewise, and huge pages", "cpu"),
    EnvironmentSetting("LD_PRELOAD", "malloc", "other allocators (jemalloc, tcmalloc) come this way", None),
)
"""The first that fits counts."""

_NOTHING_MEASURED = re.compile(
    r"NCCL_(DEBUG|VERSION|COMM_ID|HOSTID|CONF_FILE)|TORCH_NCCL_(DUMP|TRACE|LOG|DEBUG)"
    r"|PYTORCH_(VERSION|BUILD|HOME|NVML_BASED|KERNEL_CACHE)|TORCHINDUCTOR_CACHE_DIR"
)
"""Beginnings of names that log, name a build or a place, or are another in each job."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_LONGEST_VALUE = 200
_MOST = 60


def setting_of(name: str) -> EnvironmentSetting | None:
    """What is known of a variable; None where it counts for nothing measured."""
    if _NOTHING_MEASURED.match(name) or _SECRET.search(name):
        return None
    return next((one for one in SETTINGS if name == one.name or _begins(name, one.name)), None)


def _begins(name: str, pattern: str) -> bool:
    return pattern.endswith("*") and name.startswith(pattern[:-1])


def recorded(environment: Mapping[str, str]) -> tuple[str, ...]:
    """`NAME=value` of the variables that count, by name; long values are cut, and what is no text becomes a blank."""
    names = sorted(name for name in environment if name.isidentifier() and setting_of(name) is not None)
    return tuple(f"{name}={_one_line(environment[name])}" for name in names[:_MOST])


def by_name(settings: Sequence[str]) -> dict[str, str]:
    """The values of what `recorded` returned."""
    return {name: value for name, _, value in (one.partition("=") for one in settings)}


def _one_line(value: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in value)
    return " ".join(printable.split())[:_LONGEST_VALUE]

"""List of environment variables that affect speed or memory. Workers record the variables of this list with every
measurement (`Fingerprint.environment`). Variables outside the list are never read, and no name that suggests a secret
is in it."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

SettingKind = Literal["allocator", "collectives", "kernels", "threads", "malloc", "binding"]


class EnvironmentSetting(NamedTuple):
    """Environment variable that affects measurements, or a group of such variables with a common prefix."""

    name: str
    """Name of the environment variable, or a prefix followed by `*`."""
    kind: SettingKind
    why: str
    device: Literal["cuda", "cpu"] | None
    """Device type (`cuda` or `cpu`) on which measurements with different values of the variable cannot be compared. On
    the other device type, a difference only lowers confidence. If None, measurements cannot be compared on either."""


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
"""Environment variables that are known to affect measurements. If a variable matches several entries, the first one
applies."""

_NOTHING_MEASURED = re.compile(
    r"NCCL_(DEBUG|VERSION|COMM_ID|HOSTID|CONF_FILE)|TORCH_NCCL_(DUMP|TRACE|LOG|DEBUG)"
    r"|PYTORCH_(VERSION|BUILD|HOME|NVML_BASED|KERNEL_CACHE)|TORCHINDUCTOR_CACHE_DIR"
)
"""Pattern for the beginnings of names of environment variables that do not affect measurements: they concern logging,
build names or paths, or differ in each job."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_LONGEST_VALUE = 200
_MOST = 60


def setting_of(name: str) -> EnvironmentSetting | None:
    """Return what is known about an environment variable that affects measurements; None if the variable does not
    affect them."""
    if _NOTHING_MEASURED.match(name) or _SECRET.search(name):
        return None
    return next((setting for setting in SETTINGS if name == setting.name or _begins(name, setting.name)), None)


def _begins(name: str, pattern: str) -> bool:
    return pattern.endswith("*") and name.startswith(pattern[:-1])


def recorded_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return `NAME=value` of each environment variable that affects measurements, sorted by name. Long values are cut,
    and unprintable characters are replaced by blanks."""
    names = sorted(name for name in environment if name.isidentifier() and setting_of(name) is not None)
    return tuple(f"{name}={_one_line(environment[name])}" for name in names[:_MOST])


def by_name(settings: Sequence[str]) -> dict[str, str]:
    """Convert recorded `NAME=value` entries of environment variables into values by name."""
    return {name: value for name, _, value in (setting.partition("=") for setting in settings)}


def _one_line(value: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in value)
    return " ".join(printable.split())[:_LONGEST_VALUE]

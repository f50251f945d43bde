"""Environment variables of a configuration, applied in a rank's process that already runs.

A forked rank has glibc, OpenMP and torch loaded before its configuration is known, and they read the environment at that
time. Each is therefore set by its own function as well; later libraries (DeepSpeed's operators, CUDA) read the variables.
"""

import ctypes
import os

import torch

from shardtune.api_schemas.strategies import NumaBinding, TrialConfig
from shardtune.api_schemas.strategies.rank_environment import ALLOCATOR, THREADS, variables
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.rank_context import RankContext

_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Parameters of glibc's mallopt (malloc.h), by the environment variables that set them when a process starts."""


def apply(config: TrialConfig, place: RankContext) -> None:
    """Apply a configuration's settings to this rank: environment variables, threads, malloc, device allocator and
    binding to cores.

    Call it before the rank allocates memory or uses its device, and never before a fork, because OpenMP's threads do
    not survive one.

    Raises:
        SetupError: the C library lacks the setting, or the machine lacks the cores.
    """
    cores = len(os.sched_getaffinity(0))
    settings = variables(config, os.environ, cores, place.local_world_size)
    os.environ.update(settings)
    torch.set_num_threads(int(settings[THREADS]))
    for name in sorted(_MALLOPT.keys() & settings.keys()):
        _mallopt(name, int(settings[name]))
    if ALLOCATOR in settings:
        place.accelerator.configure_allocator(settings[ALLOCATOR])
    # After the threads were counted: as under torchrun, their number comes from all cores of the host, bound or not.
    if config.numa_binding != "none":
        _bind(place, config.numa_binding)


def _bind(place: RankContext, mode: NumaBinding) -> None:
    try:
        place.accelerator.bind(mode)
    except (RuntimeError, OSError) as error:
        raise SetupError(
            f"numa_binding ({mode}) cannot be done on this machine: {error}; install numactl, or search with numa_binding: none"
        ) from error


def _mallopt(name: str, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not mallopt(_MALLOPT[name], value):
        raise SetupError(f"malloc (keep) needs glibc, whose mallopt takes {name}={value}; search with malloc: default")

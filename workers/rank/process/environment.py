"""The environment a configuration asks for, put into force in a rank that runs already.

A forked rank has glibc, OpenMP and torch loaded before its configuration is known, and they read the environment when they
are. So each is told by its own setter as well; what is loaded later (DeepSpeed's operators, CUDA) reads the variables.
"""

import ctypes
import os

import torch

from shardtune.api_schemas.strategies import NumaBinding, TrialConfig
from shardtune.api_schemas.strategies.rank_environment import ALLOCATOR, THREADS, variables
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.rank_context import Place

_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Parameters of glibc's mallopt (malloc.h) by the variable that sets them at a process's start."""


def apply(config: TrialConfig, place: Place) -> None:
    """Set variables, threads, malloc and the device allocator. Before the rank allocates or touches its device, and never before a fork:
    OpenMP's threads do not survive one.

    Raises:
        SetupError: this C library has no such setting, or this machine no such cores.
    """
    cores = len(os.sched_getaffinity(0))
    wanted = variables(config, os.environ, cores, place.local_world_size)
    os.environ.update(wanted)
    torch.set_num_threads(int(wanted[THREADS]))
    for name in sorted(_MALLOPT.keys() & wanted.keys()):
        _mallopt(name, int(wanted[name]))
    if ALLOCATOR in wanted:
        place.accelerator.configure_allocator(wanted[ALLOCATOR])
    # After the threads were counted: their share is of the node's cores, bound or not, as torchrun's ranks are told.
    if config.numa_binding != "none":
        _bind(place, config.numa_binding)


def _bind(place: Place, mode: NumaBinding) -> None:
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

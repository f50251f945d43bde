"""Builds DeepSpeed's C++ operators before a trial needs them: once per machine, never within a timed trial.

Run as `python -m workers.rank.ops` by the warm host; ranks only wait for it and load the result.
"""

import functools
import shutil
import sys
from pathlib import Path

import cpuinfo  # type: ignore[import-untyped]
import filelock
from deepspeed.ops.op_builder import CPUAdamBuilder
from torch.utils.cpp_extension import _get_build_directory

from api_schemas.leases import ProfileTask, TrialTask
from api_schemas.strategies import ZeroConfig
from workers.rank.classify import SetupError

# DeepSpeed's CPU Adam asks for the CPU's vendor each time it is made, which takes a second and a subprocess. Cached
# here, the warm host asks once for all its ranks.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)

_NAME = "cpu_adam"
_BUILD_TIMEOUT_S = 600


def needed(task: TrialTask | ProfileTask) -> bool:
    """Whether the task steps its optimizer on the host with DeepSpeed's CPU Adam."""
    return (
        isinstance(task, TrialTask)
        and isinstance(task.config.strategy, ZeroConfig)
        and task.config.strategy.offload_optimizer is not None
    )


def is_built() -> bool:
    """Whether the operator lies in torch's extension cache."""
    return (_folder() / f"{_NAME}.so").exists()


def ensure(task: TrialTask) -> None:
    """Build what the task needs, unless it is there; a second rank waits for the first.

    Raises:
        SetupError: there is no compiler, or the build failed.
    """
    if needed(task) and not is_built():
        build()


def build() -> None:
    """Compile CPU Adam (about 50 s) under a lock of this machine.

    Raises:
        SetupError: there is no compiler, or the build failed.
    """
    if shutil.which("g++") is None and shutil.which("c++") is None:
        raise SetupError("offload_optimizer needs a C++ compiler to build DeepSpeed's CPU Adam; install g++")
    folder = _folder()
    with filelock.FileLock(folder.with_name(f"{_NAME}.shardtune.lock"), timeout=_BUILD_TIMEOUT_S):
        if is_built():
            return
        # torch's own lock file outlives a build that was killed, and the next one would wait for ever.
        (folder / "lock").unlink(missing_ok=True)
        try:
            CPUAdamBuilder().load(verbose=False)
        except RuntimeError as error:
            raise SetupError(f"DeepSpeed's CPU Adam did not build: {error}") from error


def _folder() -> Path:
    return Path(_get_build_directory(_NAME, verbose=False))


if __name__ == "__main__":
    try:
        build()
    except SetupError as failure:
        sys.exit(str(failure))

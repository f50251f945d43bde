"""Build of DeepSpeed's C++ operators before a trial needs them: once per kind of processor, never within a timed trial.

Run as `python -m shardtune.workers.rank.process.cpu_adam` by the agent before the first trial that needs it, and by a
rank only where that was left out.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cpuinfo  # type: ignore[import-untyped]
import deepspeed
import filelock
import psutil
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.git_version_info import accelerator_name, installed_ops
from deepspeed.ops.op_builder import CPUAdamBuilder

from shardtune.api_schemas.trials.leases import ResumeTask, TraceTask, TrialTask, uses_cpu_adam
from shardtune.workers import leftovers, processor
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.process import parent_death

# DeepSpeed's CPU Adam asks for the CPU's vendor each time it is made, which takes a second and a subprocess. Cached
# here, the fork server asks once for all its ranks.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)

_NAME = "cpu_adam"
_MARKER = "shardtune-built-for"
_BUILD_TIMEOUT_S = 600


@functools.cache
def extension_name() -> str:
    """Name of CPU Adam in torch's extension cache, one for each kind of processor and each version of the libraries.

    DeepSpeed (0.19) compiles with `-march=native`, and ninja does not notice another processor: hosts that share the
    cache would load each other's code, and end with SIGILL where an instruction is missing.
    """
    built_for = hashlib.sha256(f"{processor.digest()}, {_built_for()}".encode()).hexdigest()[:12]
    return f"{_NAME}_{built_for}"


def is_built() -> bool:
    """Whether torch's extension cache contains CPU Adam, built for this processor and the installed libraries, or
    DeepSpeed was installed with it."""
    if _is_installed():
        return True
    try:
        folder = _folder()
        return (folder / f"{extension_name()}.so").exists() and (folder / _MARKER).read_text() == _built_for()
    except OSError:
        # Without a marker, and where torch cannot make the folder, which it does when asked for its name (2.13).
        return False


def ensure_built(task: TrialTask | ResumeTask | TraceTask, report_progress: Callable[[], None]) -> None:
    """Build CPU Adam if the task needs it and it is not built yet.

    `report_progress` is called every second during the build, to show progress: else the agent would end the run as hanging.

    Raises:
        SetupError: there is no compiler, or the build failed.
    """
    if not uses_cpu_adam(task) or os.environ.get("LOCAL_RANK", "0") != "0" or is_built():
        return
    command = [
        sys.executable,
        *(["-P"] if sys.flags.safe_path else []),
        "-m",
        "shardtune.workers.rank.process.cpu_adam",
    ]
    environment = {**os.environ, parent_death.PARENT_VARIABLE: str(os.getpid())}
    builder = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while True:
        try:
            _, error_output = builder.communicate(timeout=1.0)
            break
        except subprocess.TimeoutExpired:
            report_progress()
    if builder.returncode:
        raise SetupError(
            error_output.strip()[-3000:] or f"the build of DeepSpeed's CPU Adam ended with {builder.returncode}"
        )


def load(task: TrialTask | ResumeTask | TraceTask) -> None:
    """Make DeepSpeed use the CPU Adam library that was built before."""
    # DeepSpeed would run torch's build step once more, under a lock file that a rank killed meanwhile leaves behind for
    # ever (torch 2.13): each later trial that offloads would wait for it until its deadline.
    if uses_cpu_adam(task) and is_built() and not _is_installed():
        library = _cpp_extension()._import_module_from_library(extension_name(), str(_folder()), is_python_module=True)
        CPUAdamBuilder._loaded_ops[_NAME] = library
        leftovers.mark_used(_folder())


def build() -> None:
    """Compile CPU Adam (about 50 s). A lock makes sure that only one process of this machine compiles it.

    Raises:
        SetupError: there is no compiler, the build failed, or its folder cannot be written.
    """
    if _is_installed():
        return
    if shutil.which("g++") is None and shutil.which("c++") is None:
        raise SetupError("offload_optimizer needs a C++ compiler to build DeepSpeed's CPU Adam; install g++")
    try:
        folder = _folder()
        with filelock.FileLock(folder.with_name(f"{folder.name}.shardtune.lock"), timeout=_BUILD_TIMEOUT_S):
            if is_built():
                return
            # torch's own lock file outlives a build that was killed, and the next one would wait for ever.
            (folder / "lock").unlink(missing_ok=True)
            builder = CPUAdamBuilder()
            builder.name = extension_name()
            builder.load(verbose=False)
            (folder / _MARKER).write_text(_built_for())
        _remove_unused(folder.parent)
    except filelock.Timeout as error:
        raise SetupError(
            f"another process has been building DeepSpeed's CPU Adam for {_BUILD_TIMEOUT_S} s ({error.lock_file} is "
            "locked); end that process, then restart the worker"
        ) from error
    except OSError as error:
        stated = os.environ.get("TORCH_EXTENSIONS_DIR", "not set")
        raise SetupError(
            f"TORCH_EXTENSIONS_DIR ({stated}): DeepSpeed's CPU Adam was not built: {error}; name a folder that this user "
            "can write, then restart the worker"
        ) from error
    except RuntimeError as error:
        raise SetupError(f"DeepSpeed's CPU Adam did not build: {error}") from error


def _remove_unused(cache: Path) -> None:
    """Remove what was built here for other processors and versions of the libraries (some 50 MB each) and has not been
    loaded for long."""
    built = (marker.parent for marker in cache.glob(f"{_NAME}_*/{_MARKER}") if marker.parent.name != extension_name())
    leftovers.remove_unused(built, leftovers.UNUSED_CACHE_S)


def _is_installed() -> bool:
    """Whether DeepSpeed was installed with its operator (DS_BUILD_CPU_ADAM=1), which it then imports (0.19.8,
    `OpBuilder.load`)."""
    return bool(installed_ops.get(_NAME) and accelerator_name == get_accelerator().device_name())


def _folder() -> Path:
    return Path(_cpp_extension()._get_build_directory(extension_name(), verbose=False))


def _cpp_extension() -> Any:
    # Where there is a CUDA toolkit, the module asks NVML for GPUs as it is imported (torch 2.11 to 2.15), and the fork
    # server must not initialise NVML before it forks ranks.
    return importlib.import_module("torch.utils.cpp_extension")


def _built_for() -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"torch {torch.__version__}, deepspeed {deepspeed.__version__}, Python {python}"


def _end_with_compilers(*_: object) -> None:
    """End this process and all processes below it."""
    # ninja gives each compiler a process group of its own (1.13).
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # Started by hand, it shares the group of its shell or of `make`.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Build CPU Adam in this process. The compilers end, too, when this process is terminated or its parent ends."""
    signal.signal(signal.SIGTERM, _end_with_compilers)
    parent_death.tie_to_parent(sign=signal.SIGTERM)
    try:
        build()
    except SetupError as failure:
        sys.stderr.write(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

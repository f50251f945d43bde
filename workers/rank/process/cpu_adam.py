"""Build of DeepSpeed's C++ operators before a trial needs them: once per machine, never within a timed trial.

Run as `python -m shardtune.workers.rank.process.cpu_adam` by the agent before the first trial that needs it, and by a
rank only where that was left out.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cpuinfo  # type: ignore[import-untyped]
import deepspeed
import filelock
import torch
from deepspeed.ops.op_builder import CPUAdamBuilder
from torch.utils.cpp_extension import _get_build_directory, _import_module_from_library

from shardtune.api_schemas.trials.leases import ModelSummaryTask, ResumeTask, Task, TraceTask, TrialTask
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.process import parent_death

# DeepSpeed's CPU Adam asks for the CPU's vendor each time it is made, which takes a second and a subprocess. Cached
# here, the fork server asks once for all its ranks.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)

_NAME = "cpu_adam"
_MARKER = "shardtune-built-for"
_BUILD_TIMEOUT_S = 600


def is_needed(task: Task) -> bool:
    """Whether the task's optimizer runs on the host with DeepSpeed's CPU Adam."""
    return not isinstance(task, ModelSummaryTask) and task.config.offloads_optimizer


def is_built() -> bool:
    """Whether torch's extension cache contains CPU Adam, built for the installed libraries."""
    marker = _folder() / _MARKER
    return (_folder() / f"{_NAME}.so").exists() and marker.exists() and marker.read_text() == _built_for()


def ensure_built(task: TrialTask | ResumeTask | TraceTask, report_progress: Callable[[], None]) -> None:
    """Build CPU Adam if the task needs it and it is not built yet.

    `report_progress` is called every second during the build, to show progress: else the agent would end the run as hanging.

    Raises:
        SetupError: there is no compiler, or the build failed.
    """
    if not is_needed(task) or os.environ.get("LOCAL_RANK", "0") != "0" or is_built():
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
    if is_needed(task) and is_built():
        CPUAdamBuilder._loaded_ops[_NAME] = _import_module_from_library(  # type: ignore[no-untyped-call]
            _NAME, str(_folder()), is_python_module=True
        )


def build() -> None:
    """Compile CPU Adam (about 50 s). A lock makes sure that only one process of this machine compiles it.

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
        (folder / _MARKER).write_text(_built_for())


def _folder() -> Path:
    return Path(_get_build_directory(_NAME, verbose=False))


def _built_for() -> str:
    return f"torch {torch.__version__}, deepspeed {deepspeed.__version__}"


def main() -> int:
    """Build CPU Adam in this process. The compilers end, too, when this process is terminated or its parent ends."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    parent_death.tie_to_parent(sign=signal.SIGTERM)
    try:
        build()
    except SetupError as failure:
        sys.stderr.write(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build of DeepSpeed's C++ operators before a trial needs them."""

import logging
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from shardtune.api_schemas.trials.leases import Task, uses_cpu_adam
from shardtune.workers.clock import now_s
from shardtune.workers.launchers.processes import LAUNCH_TAG, PYTHON, start_child
from shardtune.workers.status_note import doing
from shardtune.workers.trial_dir import tail

BUILD_COMMAND = (*PYTHON, "-m", "shardtune.workers.rank.process.cpu_adam")
_LIMIT_S = 900.0
"""Time limit in seconds for building DeepSpeed's C++ operators."""

GiveUp = Callable[[], bool]
"""Function that returns true when waiting must end."""

log = logging.getLogger(__name__)


class OperatorBuild:
    """Build of DeepSpeed's C++ operators that waits for the first task whose ranks need them, which a study may never have."""

    def __init__(self, build: Callable[[GiveUp], str | None]) -> None:
        """Prepare the build. `build` returns the reason why the operators were not built; None if they were."""
        self._build = build
        self._is_due = True
        self.failure: str | None = None
        """Reason why the build failed; None if it did not fail or has not run."""
        self.is_running = False
        """Whether the build is running, as seen by the thread that reports progress."""

    def run_before(self, task: Task, give_up: GiveUp) -> None:
        """Run the build if the task needs the operators. A failed build is not repeated."""
        if uses_cpu_adam(task):
            self.run(give_up)

    def run(self, give_up: GiveUp) -> None:
        """Run the build, unless one has ended."""
        if not self._is_due:
            return
        self.is_running = True
        try:
            failure = self._build(give_up)
        except OSError as error:
            # Such as a full disk: trials that need no operators can still run.
            failure = str(error)
            log.warning("DeepSpeed's CPU Adam was not built: %s", error)
        finally:
            self.is_running = False
        self._is_due = give_up()
        self.failure = None if self._is_due else failure

    def require_built(self, task: Task) -> None:
        """Check that the ranks of a task need not repeat a build that has failed here: its time would count as theirs.

        Raises:
            ValueError: the task needs the operators, and their build has failed.
        """
        if self.failure is not None and uses_cpu_adam(task):
            raise ValueError(
                f"offload_optimizer (cpu) needs DeepSpeed's CPU Adam, which this worker could not build: {self.failure}; mend "
                "that, then restart the worker"
            )


def build(
    environment: Mapping[str, str],
    launch_tag: str,
    work_dir: Path,
    give_up: GiveUp,
    command: tuple[str, ...],
) -> str | None:
    """Run the build of DeepSpeed's C++ operators to its end. A failed build is logged, and its reason is returned: trials
    that need the operators will report `setup` failures."""
    log_path, started_s = work_dir / "operators.log", now_s()
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    folder = environment.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"
    status = (
        "building DeepSpeed's CPU Adam for optimizer offload: one to three minutes, once for these libraries on this kind of "
        f"processor, in {folder}"
    )
    with doing(work_dir, status), log_path.open("wb") as output:
        builder = start_child(command, {**environment, LAUNCH_TAG: launch_tag}, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = _wait(builder, started_s + _LIMIT_S, give_up)
        finally:
            if builder.poll() is None:
                # By SIGTERM, on which it kills its compilers too.
                builder.terminate()
                builder.wait()
    if code == 0:
        log.info("DeepSpeed's CPU Adam built in %.0f s", now_s() - started_s)
        return None
    late = f"the build took longer than {_LIMIT_S:.0f} s" if code is None else ""
    reason = late or tail(log_path, 500) or f"the build ended with exit code {code}"
    if not give_up():
        log.warning(
            "DeepSpeed's CPU Adam was not built (see %s); trials that offload the optimizer will fail: %s",
            log_path,
            reason,
        )
    return f"{reason.strip()} (see {log_path})"


def _wait(builder: "subprocess.Popen[bytes]", until_s: float, give_up: GiveUp) -> int | None:
    while not give_up() and now_s() < until_s:
        try:
            return builder.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    return None

"""Have DeepSpeed's C++ operators built before any trial needs them."""

import logging
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from shardtune.workers.clock import now_s
from shardtune.workers.launchers.processes import MARK, PYTHON, start_child
from shardtune.workers.status_note import doing
from shardtune.workers.trial_dir import tail

BUILD_COMMAND = (*PYTHON, "-m", "shardtune.workers.rank.process.cpu_adam")
_LIMIT_S = 900.0

log = logging.getLogger(__name__)


def build(
    environment: Mapping[str, str], mark: str, work_dir: Path, give_up: Callable[[], bool], command: tuple[str, ...]
) -> None:
    """Run the builder to its end; a build that fails is logged, and the trials that need it will say so as `setup`."""
    log_path, began_s = work_dir / "operators.log", now_s()
    words = "building DeepSpeed's CPU Adam for optimizer offload: about a minute, once for these libraries"
    with doing(work_dir, words), log_path.open("wb") as output:
        builder = start_child(command, {**environment, MARK: mark}, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = _wait(builder, began_s + _LIMIT_S, give_up)
        finally:
            if builder.poll() is None:
                # It takes its compilers along.
                builder.terminate()
                builder.wait()
    if code == 0:
        log.info("built in %.0f s", now_s() - began_s)
    elif not give_up():
        log.warning(
            "not built (see %s); trials that offload the optimizer will fail: %s", log_path, tail(log_path, 500)
        )


def _wait(builder: "subprocess.Popen[bytes]", until_s: float, give_up: Callable[[], bool]) -> int | None:
    while not give_up() and now_s() < until_s:
        try:
            return builder.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    return None

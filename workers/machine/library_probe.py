"""Probe of the ranks' libraries and the processor; the agent itself never loads torch."""

import subprocess

from pydantic import ValidationError

from shardtune.workers.launchers.base import Prepared
from shardtune.workers.launchers.processes import PYTHON, rank_environment, start_child
from shardtune.workers.machine import rank_devices
from shardtune.workers.machine.inventory import DetectionFailed, Gpus, Libraries

_ANSWERS_S = 300.0
"""Seconds that the process may take."""


def of_prepared(prepared: Prepared, gpus: Gpus, ranks: int | None = None) -> Libraries:
    """Libraries that a process of the launcher has probed, else those of `ask`.

    Raises:
        DetectionFailed: see `ask`.
    """
    # The fork server's facts come first: another process that imports the ranks' libraries takes seconds.
    return probe(gpus, ranks) if prepared.libraries is None else Libraries.model_validate(prepared.libraries)


def probe(gpus: Gpus, ranks: int | None = None) -> Libraries:
    """Run `workers.rank.inventory` in its own process.

    Given a number of ranks, it also measures how fast one of them multiplies, on devices that this process holds.

    Raises:
        DetectionFailed: the ranks' libraries cannot be imported.
    """
    command = [*PYTHON, "-m", "shardtune.workers.rank.inventory", *([str(ranks)] if ranks else [])]
    environment = {**rank_environment(), **rank_devices.environment(gpus)}
    child = start_child(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        stdout, stderr = child.communicate(timeout=_ANSWERS_S)
    except subprocess.TimeoutExpired:
        child.kill()
        raise DetectionFailed(f"`workers.rank.inventory` did not answer within {_ANSWERS_S:.0f} s") from None
    try:
        return Libraries.model_validate_json(stdout)
    except ValidationError:
        end = stderr.decode(errors="replace").strip()[-1500:]
        raise DetectionFailed(
            f"the libraries of the ranks cannot be loaded (exit code {child.returncode}); "
            f"install the `worker` extra. Its last words:\n{end}"
        ) from None

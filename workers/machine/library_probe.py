"""Detection of the ranks' library versions and of the processor's dtypes in a separate process; the agent itself never
loads torch."""

import subprocess

from pydantic import ValidationError

from shardtune.workers.launchers.base import Prepared
from shardtune.workers.launchers.processes import PYTHON, rank_environment, start_child
from shardtune.workers.machine import rank_devices, unsupported_hardware
from shardtune.workers.machine.inventory import DetectionFailed, Gpus, Libraries

_ANSWERS_S = 300.0
"""Time limit in seconds of the process that detects the libraries."""


def of_prepared(prepared: Prepared, gpus: Gpus, ranks: int | None = None) -> Libraries:
    """Versions of the libraries that ranks use, as a process of the launcher has detected them; if none has, `probe`
    detects them.

    Raises:
        DetectionFailed: see `probe`.
    """
    # The fork server's facts come first: another process that imports the ranks' libraries takes seconds.
    return probe(gpus, ranks) if prepared.libraries is None else Libraries.model_validate(prepared.libraries)


def probe(gpus: Gpus, ranks: int | None = None) -> Libraries:
    """Detect the ranks' library versions by running `workers.rank.inventory` in a process of its own.

    Given a number of ranks, also measure one rank's rate of matrix products, on devices that this process has locked.

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
        remedy = unsupported_hardware.driver_remedy(end) or "install the `worker` extra"
        raise DetectionFailed(
            f"the libraries of the ranks cannot be loaded (exit code {child.returncode}); {remedy}. Its last words:\n{end}"
        ) from None

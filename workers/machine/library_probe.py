"""Ask a process of the rank side what is installed and what the processor has; the agent itself never loads torch."""

import subprocess
from dataclasses import dataclass

from pydantic import ValidationError

from shardtune.workers.launchers.processes import PYTHON, rank_environment, start_child
from shardtune.workers.machine import rank_devices
from shardtune.workers.machine.inventory import DetectionFailed, Gpus, Libraries

_ANSWERS_S = 300.0


@dataclass
class LibraryProbe:
    """`workers.rank.inventory` under way: its imports take seconds, in which the warm host can start as well."""

    _child: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, gpus: Gpus, ranks: int | None = None) -> "LibraryProbe":
        """Start looking; given a number of ranks, also at how fast one of them multiplies, on devices that are ours."""
        command = [*PYTHON, "-m", "shardtune.workers.rank.inventory", *([str(ranks)] if ranks else [])]
        environment = {**rank_environment(), **rank_devices.environment(gpus)}
        return cls(start_child(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def result(self) -> Libraries:
        """What is installed.

        Raises:
            DetectionFailed: the ranks' libraries cannot be imported.
        """
        try:
            stdout, stderr = self._child.communicate(timeout=_ANSWERS_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            raise DetectionFailed(f"`workers.rank.inventory` did not answer within {_ANSWERS_S:.0f} s") from None
        try:
            return Libraries.model_validate_json(stdout)
        except ValidationError:
            end = stderr.decode(errors="replace").strip()[-1500:]
            raise DetectionFailed(
                f"the libraries of the ranks cannot be loaded (exit code {self._child.returncode}); "
                f"install the `worker` extra. Its last words:\n{end}"
            ) from None

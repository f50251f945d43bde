"""Ranks on the hosts of a laboratory: started once, given one task after the other."""

import json
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.laboratory.runs import Run
from shardtune.api_schemas.machines.hardware import MeasuredHardware
from tests.lab.laboratory import Laboratory

_START_LIMIT_S = 300.0
"""Seconds in which a rank has imported torch and DeepSpeed, on a busy machine."""
_TASK_LIMIT_S = 960.0
_FIRST_PORT = 29500
_LOG_LINES = 25


class RankFailed(Exception):
    """A rank did not answer, or answered with an error."""


class HostRanks:
    """One rank on each host. Leave the context to end them."""

    def __init__(self, laboratory: Laboratory, slowness: float) -> None:
        """Prepare ranks that wait `slowness` times as long as usual."""
        self._laboratory, self._slowness = laboratory, slowness
        self._tasks = 0
        self._ranks: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for node in self._laboratory.nodes:
            with self._log(node.name).open("wb") as log:
                rank = self._laboratory.start(
                    node.name,
                    ["env", *(f"{name}={value}" for name, value in _environment().items()), sys.executable,
                     "-m", "benchmarks.laboratory.rank"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
            self._ranks.append(rank)
        self._answers(len(self._ranks), _START_LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()

    def time(self, program: str, hosts: int, steps: int) -> Run:
        """Time steps of a program on the first hosts."""
        answers = self._ask(program, hosts, steps)
        return Run(program, hosts, tuple(answers[0]["seconds"]), tuple(answer["cores"] for answer in answers))

    def measure_hardware(self, hosts: int) -> MeasuredHardware:
        """Measure rates and collectives over the first hosts, as a worker does."""
        return MeasuredHardware.model_validate(self._ask("hardware", hosts, 0)[0])

    def _ask(self, program: str, hosts: int, steps: int) -> list[dict[str, Any]]:
        self._tasks += 1
        address = self._laboratory.nodes[0].address
        group = {
            "WORLD_SIZE": str(hosts), "MASTER_ADDR": address, "MASTER_PORT": str(_FIRST_PORT + self._tasks),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        }  # fmt: skip
        for number, rank in enumerate(self._ranks[:hosts]):
            task = {"program": program, "steps": steps, "slowness": self._slowness}
            task["environment"] = {**group, "RANK": str(number)}
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(task).encode() + b"\n")
            rank.stdin.flush()
        return self._answers(hosts, _TASK_LIMIT_S)

    def _answers(self, hosts: int, limit_s: float) -> list[dict[str, Any]]:
        until_s = time.monotonic() + limit_s
        return [self._answer(number, until_s) for number in range(hosts)]

    def _answer(self, number: int, until_s: float) -> dict[str, Any]:
        stream = self._ranks[number].stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], max(0.0, until_s - time.monotonic()))
        line = stream.readline() if ready else b""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "ended" if ready else "is too late"}
        if "error" in answer:
            raise RankFailed(f"the rank on n{number} {answer['error']}:\n{self._last_lines(f'n{number}')}")
        return answer

    def _log(self, name: str) -> Path:
        return self._laboratory.claim.folder / f"{name}.rank.log"

    def _last_lines(self, name: str) -> str:
        lines: Sequence[str] = self._log(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def _environment() -> dict[str, str]:
    # gloo's own threads apart, a rank has one.
    return {
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip

"""A gang that tests and benchmarks give tasks to: `gang_session.py` in an allocation of the engine, and this end of its pipe."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shardtune.api_schemas.trials.leases import Task
from tests.lab.laboratory import Laboratory

SESSION = [sys.executable, "-m", "tests.lab.gang_session"]
ACTS = Path(__file__).with_name("failing_script.py")
_SCRIPTS = {act: f"{ACTS} {act}" for act in ("oom", "crash", "hang")}


class GangSession:
    """A worker without a service, from `with` on; `ready` waits until all hosts are."""

    def __init__(self, laboratory: Laboratory | None, folder: Path, ranks: int, **settings: Any) -> None:
        """Open a session without a laboratory, on this machine as one host. `folder`: for the work directory."""
        engine = laboratory.claim.plan.engine if laboratory else "none"
        options = {"work_dir": str(folder / "work"), "ranks": ranks, "memory_gib": 1, "allowed_scripts": _SCRIPTS}
        if laboratory is not None:
            options |= {"launcher": engine, "nodes": len(laboratory.nodes), "shared_dir": str(laboratory.claim.shared)}
        words = [*SESSION, json.dumps({**options, "min_free_gib": 0, **settings})]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._log = (folder / "session.log").open("ab")
        if laboratory is None:
            self.process = subprocess.Popen(words, stderr=self._log, start_new_session=True, **pipes)
        elif engine == "slurm":
            nodes = f"--nodes={len(laboratory.nodes)}"
            words = ["salloc", "--quiet", nodes, "--exclusive", *words]
            self.process = laboratory.start("n0", words, stderr=self._log, **pipes)
        else:
            self.process = laboratory.start("head", words, stderr=self._log, **pipes)

    def ready(self) -> dict[str, Any]:
        """Inventory that the gang offers."""
        return self._answer()["ready"]

    def begin(self, task: Task, **limits: float) -> None:
        """Have a task run; `result` waits for it."""
        self._send({"task": task.model_dump(mode="json"), **limits})

    def result(self) -> dict[str, Any]:
        """`kind` is the type of the result, or `interrupted`."""
        return self._answer()

    def run(self, task: Task, **limits: float) -> dict[str, Any]:
        """Have a task run to its end."""
        self.begin(task, **limits)
        return self.result()

    def cancel(self) -> None:
        """End the present task."""
        self._send({"cancel": True})

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the session ended with {self.process.wait()}: {Path(self._log.name).read_text()[-4000:]}"
            )
        return json.loads(line)

    def close(self) -> None:
        """End it as a person would, and wait until it has."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

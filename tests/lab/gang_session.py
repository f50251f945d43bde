"""`gang_session.py SETTINGS`: hold hosts as a worker does and run tasks as told by lines of JSON; runs on a host.

Up comes `{"ready": inventory}`, then for each `{"task": …}` a line with its result; `{"cancel": true}` ends the present one.
The end of input ends the session.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from pydantic import TypeAdapter

from shardtune.api_schemas.trials.leases import Task
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.commands.agent import workplace
from shardtune.workers.commands.host_pool import open_hosts
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.trial_dir import TrialDir

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


class Orders:
    """Messages from the other end of the pipe; a cancellation counts for the task that is running."""

    def __init__(self) -> None:
        self.cancelled: str | None = None
        self._tasks: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "cancel" in order:
                self.cancelled = "cancelled"
            else:
                self._tasks.put(order)
        self.cancelled = "the session is over"
        self._tasks.put(None)

    def next(self) -> dict[str, Any] | None:
        order = self._tasks.get()
        self.cancelled = None if order is not None else self.cancelled
        return order


def main() -> int:
    """Serve until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = WorkerSettings.model_validate_json(sys.argv[1])
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    orders, interrupt = Orders(), Interrupt().install()
    with open_hosts(settings, allowed, interrupt, builds=False) as hosts:
        if hosts is None:
            return 0
        _say(out, {"ready": hosts.offered.model_dump(mode="json")})
        number = 0
        while (order := orders.next()) is not None and not interrupt:
            number += 1
            _say(out, _run(workplace(settings, hosts, allowed), order, f"run-{number}", orders))
    return 0


def _run(where: Workplace, order: dict[str, Any], name: str, orders: Orders) -> dict[str, Any]:
    task = _TASK.validate_python(order["task"])
    began_s = time.monotonic()
    done = run_attempt(
        where,
        task,
        lambda: TrialDir.create(where.work_dir, name, task, where.fingerprint, 0),
        RunLimits(order.get("deadline_s", 300.0), order.get("no_progress_s", 120.0)),
        lambda: orders.cancelled,
    )
    answer: dict[str, Any] = {"elapsed_s": time.monotonic() - began_s, "result": None, "kind": "interrupted"}
    if done is not None:
        answer |= {"result": done.result.model_dump(mode="json"), "kind": type(done.result).__name__}
        answer["log_tail"] = done.log_tail
    return answer


def _say(out: Any, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())

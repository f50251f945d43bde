"""Several node agents on this machine, as if each were a host: an engine of command pipes."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardtune.workers.gang.command_pipe import CommandPipe

FAKE_NODE_AGENT = (sys.executable, "-P", str(Path(__file__).with_name("fake_node_agent.py")))
ROOT = Path(__file__).parents[4]


class LocalHosts:
    """`names` may be changed while a gang lives; `pipes` are those that were opened, the newest last."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        mark: str,
        acts: Sequence[str] = (),
        says: Mapping[str, Mapping[str, Any]] = {},
        command: Sequence[str] = FAKE_NODE_AGENT,
    ) -> None:
        self.names, self.pipes = list(names), list[CommandPipe]()
        self._folder, self._mark, self._command, self._says = folder, mark, command, says
        self._environment = {**os.environ, "FAKE_ACTS": json.dumps(list(acts)), "PYTHONPATH": str(ROOT)}

    worker_name: str | None = None

    def hosts(self) -> tuple[str, ...]:
        return tuple(self.names)

    def start(self, host: str) -> CommandPipe:
        own = self._folder / host / "tmp"
        own.mkdir(parents=True, exist_ok=True)
        environment = {**self._environment, "NODE_SAYS": json.dumps(self._says.get(host, {})), "TMPDIR": str(own)}
        # A mark for each: hosts do not see each other's processes.
        command = [*self._command, host, f"{self._mark}-{host}"]
        self.pipes.append(CommandPipe(host, command, environment, self._folder / f"{host}.log"))
        return self.pipes[-1]

    def ends_in_s(self) -> float | None:
        return None

    def close(self) -> None:
        pass

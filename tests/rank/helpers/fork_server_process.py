"""A fork server of the tests' own, and their end of its protocol."""

import json
import os
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TextIO

from shardtune.api_schemas.trials.leases import Task, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.launch import Launch
from shardtune.workers.rank.fork_server import server
from tests.support.processes import preloaded_forks


def launch_order(folder: Path, launch: Launch) -> dict[str, Any]:
    """Order to the fork server, as a launcher gives it."""
    return {"launch": str(folder), "as": launch.started().model_dump(mode="json")}


@dataclass
class HostProcess:
    """A fork server, itself forked from a process that is warm, and its end of the protocol."""

    process: ForkServerProcess
    folder: Path
    orders: TextIO
    events: TextIO
    ready: dict[str, Any]
    launched: int = 0

    @classmethod
    def start(cls, folder: Path) -> "HostProcess":
        pipes = folder / "orders", folder / "events"
        for pipe in pipes:
            os.mkfifo(pipe)
        process = preloaded_forks.fork(serve_on, *pipes, output=folder / "host.log")
        orders, events = pipes[0].open("w"), pipes[1].open()
        return cls(process, folder, orders, events, json.loads(events.readline()))

    def order(self, order: dict[str, Any]) -> None:
        self.orders.write(json.dumps(order) + "\n")
        self.orders.flush()

    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.events.readline())
        return event

    def prepare(self, task: Task) -> Path:
        """A new trial directory with that task."""
        self.launched += 1
        folder = self.folder / f"run-{self.launched}"
        folder.mkdir()
        (folder / "task.json").write_text(task.model_dump_json())
        return folder

    def launch(self, folder: Path, ranks: int) -> None:
        """Ranks of this host alone."""
        self.order(launch_order(folder, Launch.of(ranks)))

    def run_folder(self, folder: Path, ranks: int) -> list[int]:
        """Launch and wait; exit codes by rank."""
        self.launch(folder, ranks)
        started = self.event()
        assert started["event"] == "started", started
        codes = {}
        for _ in started["pids"]:
            event = self.event()
            codes[event["rank"]] = event["code"]
        return [codes[rank] for rank in sorted(codes)]

    def run(self, task: TrialTask) -> list[RankReport]:
        """Run a trial; the reports by rank."""
        ranks = task.cluster.world_size
        folder = self.prepare(task)
        self.run_folder(folder, ranks)
        return [RankReport.model_validate_json((folder / f"rank_{r}.json").read_text()) for r in range(ranks)]

    def close(self) -> None:
        self.orders.close()
        self.events.close()
        self.process.join(20)
        assert not self.process.is_alive()


def serve_on(orders: Path, events: Path) -> None:
    """Be a fork server on these pipes."""
    os.dup2(os.open(orders, os.O_RDONLY), 0)
    os.dup2(os.open(events, os.O_WRONLY), 1)
    server.serve()

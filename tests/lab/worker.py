"""A worker over a laboratory's hosts as an operator starts it: an `sbatch` of deploy/slurm/worker.sbatch, or a process beside Ray's head."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.hosts import REPOSITORY, Host
from tests.lab.laboratory import HEAD, Laboratory
from tests.lab.ray_cluster import RayCluster
from tests.lab.service import LabService
from tests.lab.slurm import Slurm

NAME = "gang"
"""Name of the worker on Ray; Slurm's is named after its job."""
_AGENT = "-m shardtune.workers --launcher"


class LabWorker:
    """Worker over all hosts of the laboratory."""

    def __init__(self, laboratory: Laboratory, service: LabService) -> None:
        self._laboratory = laboratory
        shared = laboratory.claim.shared
        self._environment = {
            "SHARDTUNE_PYTHON": sys.executable,
            "SHARDTUNE_API_KEY_FILE": str(service.key_file),
            "SHARDTUNE_WORKER_RANKS": str(laboratory.claim.plan.ranks),
            "SHARDTUNE_WORKER_MEMORY_GIB": "1",
            "SHARDTUNE_WORKER_BUILD_OPERATORS": "false",
            "SHARDTUNE_WORKER_SHARED_DIR": str(shared),
            "SHARDTUNE_WORKER_GANG_WAIT_S": "120",
        }
        self._url, self._log = service.url, shared / "worker.log"
        self._work_dir = shared / "work"
        self._environment["SHARDTUNE_WORK_DIR"] = str(self._work_dir)
        self.job: str | None = None
        """Slurm's number."""
        self._process: subprocess.Popen[bytes] | None = None

    def measure_hardware(self) -> None:
        """Measure the hardware once, as an operator does; the worker finds the result in its work directory."""
        words = [
            sys.executable,
            "-m",
            "shardtune.workers",
            "measure-hardware",
            "--launcher",
            self._laboratory.claim.plan.engine,
        ]
        words += ["--nodes", str(len(self._laboratory.nodes)), "--work-dir", str(self._work_dir)]
        if isinstance(self._laboratory.engine, Slurm):
            words = ["salloc", "--quiet", f"--nodes={len(self._laboratory.nodes)}", "--exclusive", *words]
        environment_assignments = [f"{name}={value}" for name, value in self._environment.items()]
        self._laboratory.run(HEAD, ["env", *environment_assignments, *words], timeout_s=600)

    def start(self) -> None:
        """Submit the job, or start the process."""
        nodes = str(len(self._laboratory.nodes))
        if isinstance(self._laboratory.engine, Slurm):
            words = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={self._log}"]
            script = str(REPOSITORY / "deploy/slurm/worker.sbatch")
            environment_assignments = [f"{name}={value}" for name, value in self._environment.items()]
            self.job = self._laboratory.run(HEAD, ["env", *environment_assignments, *words, script, self._url]).strip()
            return
        words = [
            sys.executable,
            *_AGENT.split(),
            "ray",
            "--nodes",
            nodes,
            "--service",
            self._url,
            "--work-dir",
            "/tmp/work",
        ]
        environment_assignments = [f"{name}={value}" for name, value in self._environment.items()]
        with self._log.open("ab") as log:
            self._process = self._laboratory.start(
                HEAD, ["env", *environment_assignments, *words], stdout=log, stderr=log
            )

    def tend(self) -> None:
        """Restart ended processes once, as a supervisor does. Slurm's jobs requeue themselves; daemons are nobody's but
        ours."""
        for host in self._laboratory.hosts:
            if host.is_up:
                self._daemons(host)
        if self._process is not None:
            # `nsenter` stops with what it waits for, and does not see its end then.
            self._process.send_signal(signal.SIGCONT)
            if self._process.poll() is not None and self._is_ray_up():
                self.start()

    def _daemons(self, host: Host) -> None:
        engine = self._laboratory.engine
        if isinstance(engine, RayCluster) and not host.find("raylet"):
            head = self._laboratory.head
            if host is head or (head is not None and head.is_up and head.find("gcs_server")):
                engine.start_on(host)
        if isinstance(engine, Slurm):
            if host is self._laboratory.head and not host.find("slurmctld"):
                engine.start_controller()
            elif host in self._laboratory.nodes and not host.find("slurmd -D"):
                engine.start_slurmd(host)

    def _is_ray_up(self) -> bool:
        return all(host.is_up and host.find("raylet") for host in self._laboratory.hosts)

    @property
    def agent_host(self) -> Host:
        """Host of the agent."""
        return next(host for host in self._laboratory.hosts if self.agents_on(host))

    def agents_on(self, host: Host) -> set[int]:
        """The agent's own process."""
        return host.find(_AGENT)

    def end(self) -> None:
        """Have it end as an operator would."""
        if self.job is not None:
            self._laboratory.run(HEAD, ["scancel", self.job])
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        ends_s = time.monotonic() + 60
        while any(host.find("shardtune.workers") for host in self._laboratory.hosts) and time.monotonic() < ends_s:
            time.sleep(0.2)

    def log(self) -> str:
        """Log of the worker."""
        return Path(self._log).read_text()

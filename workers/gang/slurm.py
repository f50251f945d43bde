"""The hosts of a Slurm job: node agents as job steps. Needs nothing but Slurm's own commands (22.05 or later)."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shardtune.workers.clock import now_s
from shardtune.workers.gang.command_pipe import CommandPipe
from shardtune.workers.gang.pipe import NODE_COMMAND
from shardtune.workers.launchers.base import LaunchFailed
from shardtune.workers.launchers.processes import without_secrets

_ASKED_S = 30.0
"""How often the job's end is asked for: an administrator may move it."""
_COMMAND_S = 20.0
_WARNED_S = 60.0
"""Before its end a job is told to stop, as deploy/slurm/worker.sbatch asks with `--signal`."""
_KEPT = frozenset({"SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_JWT"})
"""What `srun` needs to know of the job. Of the others some are options of the batch script's, such as SLURM_MEM_PER_CPU, which
contradict ours."""
_STEP = ("--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL")
"""The whole host and all of its processors: the ranks share them out themselves."""
_LEFT = re.compile(r"^(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)$")
"""Time left as `squeue` says it: `1-02:03:04`, `02:03:04` or `03:04`."""


class SlurmHosts:
    """The job that this process runs in."""

    def __init__(
        self,
        log_dir: Path,
        nodes: int | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`options`: further ones of `srun`, such as a container's.

        Raises:
            ValueError: there is no job, or it has fewer hosts than `nodes`.
            LaunchFailed: Slurm's commands do not work here.
        """
        if not environment.get("SLURM_JOB_ID") or not environment.get("SLURM_JOB_NODELIST"):
            raise ValueError(
                "launcher (slurm) needs a Slurm job, and SLURM_JOB_ID is not set; start the worker in one, with `sbatch` or "
                "`salloc`"
            )
        self._job = environment["SLURM_JOB_ID"]
        self._cluster = environment.get("SLURM_CLUSTER_NAME", "slurm")
        self._log_dir, self._options = log_dir, tuple(options)
        inherited = without_secrets(environment)
        self._environment = {
            name: value for name, value in inherited.items() if not name.startswith("SLURM_") or name in _KEPT
        }
        self._left: tuple[float, float | None] | None = None
        self._names = tuple(self._ask("scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]).split())
        if nodes is not None and nodes > len(self._names):
            raise ValueError(
                f"nodes ({nodes}) must not exceed the job's hosts ({len(self._names)}: {', '.join(self._names)}); ask Slurm for "
                f"more with `--nodes={nodes}`, or use fewer"
            )

    @property
    def worker_name(self) -> str:
        """The same after the job was requeued."""
        return f"slurm:{self._cluster}:{self._job}"

    def hosts(self) -> tuple[str, ...]:
        """As the job was given them."""
        return self._names

    def start(self, host: str) -> CommandPipe:
        """A step on that host."""
        command = ["srun", *_STEP, f"--nodelist={host}", *self._options, *NODE_COMMAND]
        return CommandPipe(host, command, self._environment, self._log_dir / f"node-{host}.log")

    def ends_in_s(self) -> float | None:
        """Until the job is told to stop, because its time is nearly over."""
        asked = self._left
        if asked is None or now_s() - asked[0] > _ASKED_S:
            asked = (now_s(), self._time_left_s())
            self._left = asked
        at_s, left_s = asked
        return None if left_s is None else left_s - (now_s() - at_s) - _WARNED_S

    def _time_left_s(self) -> float | None:
        try:
            words = self._ask("squeue", "--noheader", f"--jobs={self._job}", "--format=%L").strip()
        except LaunchFailed:
            # Its controller is away: the job goes on, and its end will be asked for again.
            return None
        return seconds_of(words)

    def _ask(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=_COMMAND_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchFailed(f"`{command[0]}` did not answer: {error}; is Slurm's client installed here?") from None
        if done.returncode:
            raise LaunchFailed(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def close(self) -> None:
        """The job is Slurm's to end."""


def seconds_of(left: str) -> float | None:
    """Of a time left as `squeue` prints it; None where the job is not limited, or nobody knows."""
    match = _LEFT.match(left)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

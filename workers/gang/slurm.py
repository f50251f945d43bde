"""Hosts of a Slurm job as an engine, with node agents as job steps. Needs only Slurm's own commands (22.05 or
later)."""

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

_QUERY_S = 30.0
"""Seconds between two queries of the Slurm job's end time, which an administrator may change."""
_COMMAND_S = 20.0
_WARNED_S = 60.0
"""Seconds before the job's end at which Slurm signals the job to stop, as deploy/slurm/worker.sbatch requests with
`--signal`."""
_KEPT_VARIABLES = frozenset({"SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_JWT"})
"""Environment variables by which `srun` finds the job. Job steps get no other variables that begin with SLURM_, because
these would act as options of `srun` (such as SLURM_MEM_PER_CPU) and contradict the worker's own options."""
_OPTION_PREFIXES = ("SLURM_", "SRUN_")
"""Prefixes of environment variables that act as options of `srun`. In Slurm 22.05 and 23.02 SRUN_CPUS_PER_TASK takes the
place of SLURM_CPUS_PER_TASK, and would bind a host's ranks to that many processors."""
_STEP = ("--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL")
"""Options of `srun` that give a job step the whole host with all its processors, which the ranks then divide among
themselves."""
_TIME_LEFT = re.compile(r"^(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)$")
"""Regular expression for the time left as `squeue` prints it: `1-02:03:04`, `02:03:04` or `03:04`."""


class SlurmHosts:
    """Hosts of the Slurm job in which this process runs."""

    def __init__(
        self,
        log_dir: Path,
        nodes: int | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Read the hosts of the Slurm job. `options` are additional options of `srun`, such as those of a container.

        Raises:
            ValueError: there is no job, or it has fewer hosts than `nodes`.
            LaunchFailed: Slurm's commands do not work on this machine.
        """
        if not environment.get("SLURM_JOB_ID") or not environment.get("SLURM_JOB_NODELIST"):
            raise ValueError(
                "launcher (slurm) needs a Slurm job, and SLURM_JOB_ID is not set; start the worker in one, with `sbatch` or "
                "`salloc`"
            )
        self._job = environment["SLURM_JOB_ID"]
        self._cluster = environment.get("SLURM_CLUSTER_NAME", "slurm")
        self._log_dir, self._options = log_dir, tuple(options)
        # Inherited SLURM_ variables would act as options of every `srun` started here.
        inherited = without_secrets(environment)
        self._environment = {
            name: value
            for name, value in inherited.items()
            if not name.startswith(_OPTION_PREFIXES) or name in _KEPT_VARIABLES
        }
        self._left: tuple[float, float | None] | None = None
        self._names = tuple(
            self._run_command("scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]).split()
        )
        if nodes is not None and nodes > len(self._names):
            raise ValueError(
                f"nodes ({nodes}) must not exceed the job's hosts ({len(self._names)}: {', '.join(self._names)}); ask Slurm for "
                f"more with `--nodes={nodes}`, or use fewer"
            )

    @property
    def worker_name(self) -> str:
        """Name for the worker that stays the same when the Slurm job is requeued."""
        return f"slurm:{self._cluster}:{self._job}"

    def hosts(self) -> tuple[str, ...]:
        """Hosts of the Slurm job, in the order of its node list."""
        return self._names

    def start(self, host: str) -> CommandPipe:
        """Start a job step with a node agent on the host."""
        command = ["srun", *_STEP, f"--nodelist={host}", *self._options, *NODE_COMMAND]
        return CommandPipe(host, command, self._environment, self._log_dir / f"node-{host}.log")

    def ends_in_s(self) -> float | None:
        """Seconds until Slurm signals the job to stop, because its time is nearly over; None if unknown."""
        time_left = self._left
        if time_left is None or now_s() - time_left[0] > _QUERY_S:
            time_left = (now_s(), self._time_left_s())
            self._left = time_left
        at_s, left_s = time_left
        return None if left_s is None else left_s - (now_s() - at_s) - _WARNED_S

    def _time_left_s(self) -> float | None:
        try:
            time_left = self._run_command("squeue", "--noheader", f"--jobs={self._job}", "--format=%L").strip()
        except LaunchFailed:
            # Slurm's controller is away: the job goes on, and a later query will tell its end.
            return None
        return seconds_of(time_left)

    def _run_command(self, *command: str) -> str:
        try:
            completed = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=_COMMAND_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchFailed(f"`{command[0]}` did not answer: {error}; is Slurm's client installed here?") from None
        if completed.returncode:
            raise LaunchFailed(
                f"`{' '.join(command)}` ended with {completed.returncode}: {completed.stderr.strip()[-500:]}"
            )
        return completed.stdout

    def close(self) -> None:
        """Do nothing: the hosts belong to the Slurm job, and Slurm itself ends the job."""


def seconds_of(time_left: str) -> float | None:
    """Time left of a job in seconds, parsed as `squeue` prints it; None if the job has no time limit or the time is
    unknown."""
    match = _TIME_LEFT.match(time_left)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

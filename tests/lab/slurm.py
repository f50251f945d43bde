"""Slurm on the hosts: slurmctld on `head`, one slurmd on each of the others, munge on all; Debian's packages, as root.

No control groups and no CPU binding (`proctrack/linuxproc`, `task/none`): nothing outside the laboratory is touched.
"""

import secrets
import subprocess
import time
from pathlib import Path

from tests.lab.hosts import Host

NEEDS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_START_S = 60.0
_SOCKET = "/tmp/munge/socket"
"""Folder of Slurm on each host."""
_CONF = """
ClusterName=lab
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
KillWait=5
JobRequeue=1
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
{nodes}
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The daemons of one laboratory."""

    def __init__(self, head: Host, nodes: tuple[Host, ...], ranks: int):
        self._head, self._nodes, self._ranks = head, nodes, ranks
        self._folder = head.claim.folder / "slurm"
        self.environment = {"SLURM_CONF": str(self._folder / "slurm.conf")}
        """Environment variables that every command of Slurm needs."""

    def start(self) -> None:
        """Start all daemons and wait until every host takes work."""
        self._configure()
        for host in (self._head, *self._nodes):
            self._munge(host)
        self.start_controller()
        for host in self._nodes:
            self.start_slurmd(host)
        self.await_idle()

    def start_on(self, host: Host) -> None:
        """Start a host's daemons, once more after a power cut."""
        self._munge(host)
        if host is self._head:
            self.start_controller()
        else:
            self.start_slurmd(host)

    def start_controller(self) -> None:
        """Start slurmctld, also after it was killed: it knows its jobs from its state."""
        self._head.daemon("slurmctld", ["slurmctld", "-D"], self.environment)

    def await_idle(self) -> None:
        """Return when every host would take a job now."""
        until_s = time.monotonic() + _START_S
        while (states := self._states()) != ["idle"] * len(self._nodes):
            if time.monotonic() > until_s:
                raise RuntimeError(f"Slurm's hosts are {states} after {_START_S:.0f} s: see {self._head.claim.folder}")
            time.sleep(0.1)

    def _states(self) -> list[str]:
        words = self._head.command(["sinfo", "--noheader", "--Node", "--format=%T"])
        answer = subprocess.run(
            words, env={**_path(), **self.environment}, capture_output=True, text=True, timeout=_START_S, check=False
        )
        return answer.stdout.split()

    def _configure(self) -> None:
        for name in ("state", *(f"spool-{node.name}" for node in self._nodes)):
            (self._folder / name).mkdir(parents=True)
        key = self._folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        nodes = [
            f"NodeName={node.name} NodeAddr={node.address} CPUs={self._ranks} State=UNKNOWN" for node in self._nodes
        ]
        values = {"head": self._head.address, "socket": _SOCKET, "folder": self._folder, "nodes": "\n".join(nodes)}
        (self._folder / "slurm.conf").write_text(_CONF.format(**values))
        (self._folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")

    def _munge(self, host: Host) -> None:
        folder = Path(_SOCKET).parent
        subprocess.run(host.command(["mkdir", "--mode=755", str(folder)]), check=True)
        own = {"socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        places = [f"--{option}={folder}/{name}" for option, name in own.items()]
        host.daemon("munged", ["munged", "--foreground", f"--key-file={self._folder}/munge.key", *places], {})
        _await_socket(host)

    def start_slurmd(self, host: Host) -> None:
        """Start a host's slurmd; steps that run there go on."""
        host.daemon("slurmd", ["slurmd", "-D", "-N", host.name], self.environment)


def _await_socket(host: Host) -> None:
    until_s = time.monotonic() + _START_S
    while subprocess.run(host.command(["test", "-S", _SOCKET]), check=False).returncode:
        assert time.monotonic() < until_s, f"munged did not start on {host.name}: see {host.claim.folder}"
        time.sleep(0.02)


def _path() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

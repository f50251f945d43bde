"""Settings of a worker's agent: from the command line, then `SHARDTUNE_WORKER_*` environment variables, then defaults."""

import platform
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shardtune.api_schemas.machines.engines import ENGINES_IN_WORDS, LauncherName
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.workers.config.overrides import split_overrides


class WorkerSettings(BaseSettings):
    """Settings of one agent (worker process). Each may be given as the environment variable
    `SHARDTUNE_WORKER_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="SHARDTUNE_WORKER_", frozen=True, extra="forbid")

    service: str = "http://127.0.0.1:8470"
    """Base URL of the service."""
    proxy: str | None = None
    """URL of a proxy to the service. `HTTP_PROXY` and similar variables are ignored: their proxy would see the API key."""
    work_dir: Path = Path(".shardtune/worker")
    """Folder for trial directories, logs and, for CPU ranks, the lock that keeps a second agent out. It is created with
    mode 0700. A folder that another user owns or can write is rejected."""
    name: str | None = None
    """Name of this resource pool (the devices of this worker), which stays the same after a restart. Default: host name
    and work directory."""
    ranks: int | None = Field(default=None, ge=1, le=1024)
    """Number of ranks of a trial. Default: one for each visible GPU, or 2 CPU ranks where there is no GPU."""
    # NoDecode: pydantic-settings would parse a variable of a complex type as JSON; the validators below split text.
    split: Annotated[tuple[int, ...], NoDecode] = ()
    """Numbers of ranks of several workers that divide this machine, separated by commas. As many workers of each size
    are started as fit: `1,8` on eight GPUs starts one worker per GPU, and one with all eight. Default: one worker with
    all ranks."""
    host_partition: HostPartition | None = None
    """Host partition (part of the machine) that this worker uses if several workers divide the machine. The process
    that starts the workers sets it."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory of one CPU rank in GiB. Default: an equal part of the host's memory. It must not be set on a machine with
    GPUs, whose memory is detected."""
    cold: bool = False
    """Start one interpreter per rank instead of forking ranks from a fork server: slower, but the ranks share no process
    state."""
    allowed_models: Annotated[tuple[str, ...], NoDecode] = ()
    """Names of entry points in the group `shardtune.models` that studies may use. In the environment they are separated
    by commas."""
    allowed_scripts: Annotated[dict[str, str], NoDecode] = {}
    """Training scripts that studies may use, each a name with its command (a Python script and its arguments). In the
    environment they are written NAME=COMMAND, separated by semicolons."""
    fingerprint_override: Annotated[dict[str, str], NoDecode] = {}
    """Values that replace fields of the detected fingerprint (hardware and software versions), to try out the effects
    of a change. Every record marks the replaced fields. In the environment they are written FIELD=VALUE, separated by
    semicolons."""
    look_again_s: float = Field(default=60, gt=0)
    """Seconds between two inspections of the machine's hardware and software versions. Inspections take place between
    runs; the worker reports a change to the service."""
    keep_trials: int = Field(default=20, ge=0)
    """Number of trial directories of successful runs to keep; older ones are deleted."""
    keep_failed: int = Field(default=200, ge=0)
    """Number of trial directories of failed runs to keep; older ones are deleted."""
    min_free_gib: float = Field(default=1.0, ge=0)
    """GiB that must be free on the work directory's disk. If less is free, a run fails with the failure kind
    `setup`."""
    host_ready_s: float = Field(default=600, gt=0)
    """Seconds that the fork server may take to import torch, deepspeed and transformers."""
    launcher: LauncherName = "local"
    """Launcher of the ranks. They run on this machine, or as one gang on the hosts of a Slurm job or a Ray cluster."""
    nodes: int | None = Field(default=None, ge=1, le=100_000)
    """Number of hosts that train together (the gang). Default: all hosts of the Slurm job."""
    node_dir: Path | None = None
    """Folder on each host for trial directories and logs; it must not be shared between hosts. Default: a folder of
    this user in the host's temporary folder."""
    shared_dir: Path | None = None
    """Folder that every host sees, in which the checkpoints of resume checks are saved, in a subfolder of this user.
    Without it, a gang of several hosts runs no resume checks."""
    interface: str | None = None
    """Network interface through which hosts exchange data. Default: the interface by which the other hosts reach the
    first host."""
    meet_ports: Annotated[tuple[int, int] | None, NoDecode] = None
    """Ports FIRST-LAST from which the store of the ranks' rendezvous takes one; needed if a firewall blocks other
    ports. Default: any port. It does not limit the ports of gloo and NCCL."""
    gang_wait_s: float = Field(default=600, gt=0)
    """Seconds to wait for lost hosts to come back, and for hosts that have not started yet."""
    srun_options: Annotated[tuple[str, ...], NoDecode] = ()
    """Additional options of `srun`, such as those of a container. In the environment they are separated by
    semicolons."""
    ray_address: str | None = None
    """Address of the Ray cluster. Default: RAY_ADDRESS, or the cluster of this host."""
    node_lease_s: float = Field(default=8, ge=2, le=60)
    """Seconds of a host's lease. A host that gets no answer from the agent for three quarters of them ends its ranks,
    which are gone when the lease ends. A longer lease causes fewer false alarms on hosts under load, but a lost host is
    noticed later."""
    exit_when_idle_minutes: float | None = Field(default=None, gt=0, le=525_600)
    """Minutes without a run after which the worker ends. The exit code is 0, or 1 if the service does not answer then.
    Set it on machines that are started for pending work and should end after it. Default: the worker waits for runs
    until it is stopped."""
    measure_rates: bool = True
    """Measure the ranks' rates (such as FLOP/s and bandwidths) at the first start on hardware for which no published
    figures are known, such as CPU ranks. This takes half a minute, and the result is kept in `work_dir`. Otherwise the
    first searches there are guided by a guess, or not at all."""
    build_operators: bool = True
    """Build DeepSpeed's CPU Adam (which takes one to three minutes and is then cached) before the first trial that
    offloads its optimizer; over several hosts or on a divided machine, before the worker takes runs. Otherwise that
    trial builds it, in its own time."""

    @field_validator("split", mode="before")
    @classmethod
    def _split_sizes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        sizes = [entry.strip() for entry in value.split(",") if entry.strip()]
        if not all(size.isascii() and size.isdecimal() and int(size) > 0 for size in sizes):
            raise ValueError(f"split ({value}) must be numbers of ranks separated by commas, such as 1,8")
        if len({int(size) for size in sizes}) < len(sizes):
            raise ValueError(
                f"split ({value}) names a size twice, whose workers would have one name; name each size once"
            )
        return [int(size) for size in sizes]

    @field_validator("allowed_models", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("allowed_scripts", mode="before")
    @classmethod
    def _split_commands(cls, value: Any) -> Any:
        """Split the settings' `NAME=COMMAND` texts into commands by name."""
        entries = value.split(";") if isinstance(value, str) else value
        if not isinstance(entries, list | tuple):
            return entries
        commands: dict[str, str] = {}
        for entry in filter(None, (entry.strip() for entry in entries)):
            name, equals, command = entry.partition("=")
            if not equals or not name.strip():
                raise ValueError(f"allowed_scripts ({entry!r}) must be NAME=COMMAND, such as plain=/path/to/train.py")
            commands[name.strip()] = command.strip()
        return commands

    @field_validator("fingerprint_override", mode="before")
    @classmethod
    def _split_overrides(cls, value: Any) -> Any:
        entries = [entry for entry in value.split(";") if entry.strip()] if isinstance(value, str) else value
        return split_overrides(entries) if isinstance(entries, list | tuple) else entries

    @field_validator("srun_options", mode="before")
    @classmethod
    def _split_options(cls, value: Any) -> Any:
        return [entry.strip() for entry in value.split(";") if entry.strip()] if isinstance(value, str) else value

    @field_validator("meet_ports", mode="before")
    @classmethod
    def _split_ports(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", value.strip())
        ports = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1024 <= ports[0] <= ports[1] <= 65535:
            raise ValueError(f"meet_ports ({value}) must be FIRST-LAST within 1024-65535, such as 29500-29600")
        return ports

    @model_validator(mode="after")
    def _check_launcher(self) -> Self:
        if self.launcher == "local" and (self.nodes or 1) > 1:
            raise ValueError(f"nodes ({self.nodes}) must be 1 with --launcher local; add --launcher {ENGINES_IN_WORDS}")
        if self.split and self.launcher != "local":
            sizes = ",".join(map(str, self.split))
            raise ValueError(
                f"split ({sizes}) divides one machine, and --launcher {self.launcher} trains over several; leave one out"
            )
        return self

    @property
    def pool_name(self) -> str:
        """Name of this worker's resource pool in the service; the same after a restart."""
        # The end of a long name, since the work directory at the end tells workers of a host apart.
        return (self.name or f"{platform.node()}:{self.work_dir.resolve()}")[-200:]

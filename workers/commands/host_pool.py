"""Hosts on which a command runs: this machine with its devices locked, or a gang of hosts, each behind one launcher."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory
from shardtune.api_schemas.strategies.rank_environment import THREADS
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.gang.hosts import GangPlan
from shardtune.workers.gang.launcher import GangLauncher
from shardtune.workers.gang.messages import Begin
from shardtune.workers.gang.pipe import Engine
from shardtune.workers.gang.slurm import SlurmHosts
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.launchers.base import Launcher, LaunchFailed
from shardtune.workers.launchers.operators import OperatorBuild
from shardtune.workers.machine import device_hold, library_probe
from shardtune.workers.machine.inventory import ranks_of
from shardtune.workers.machine.offered_inventory import detect_again, offer, with_measured

_HOST_SETTINGS = {
    *("ranks", "memory_gib", "cold", "allowed_models", "allowed_scripts", "host_ready_s"),
    *("min_free_gib", "keep_trials"),
}
"""Names of the worker settings that the agent sends to each host of a gang."""


@dataclass(frozen=True)
class HostPool:
    """Hosts that are ready to run trials, with their inventory (hardware and software) and launcher."""

    launcher: Launcher
    offered: Inventory
    """Inventory (hardware and software) of the hosts, which the worker reports to the service."""
    detect_again: Callable[[], Fingerprint | None]
    """Function that returns the hosts' present fingerprint (hardware and software versions); None if it is unchanged or
    unknown."""
    worker_name: str | None = None
    """Name that the engine (such as Slurm) gives the worker; None if it gives none."""
    ends_in_s: Callable[[], float | None] = lambda: None
    """Seconds until the scheduler takes the hosts away; None if unknown."""
    operator_build: OperatorBuild | None = None
    """Build of DeepSpeed's operators before the first trial that needs them; None if the hosts have them, or if it is
    left to the ranks."""


@contextlib.contextmanager
def open_hosts(
    settings: WorkerSettings, allowed: Allowed, interrupt: Interrupt, *, builds: bool
) -> Iterator[HostPool | None]:
    """Context in which the hosts are ready for trials. Everything is prepared that would otherwise take time from the
    first trial. Its value is None if the preparation was interrupted.

    `builds`: whether to build DeepSpeed's operators, too, unless the settings turn that off.
    """
    settings = settings.model_copy(update={"build_operators": builds and settings.build_operators})
    with (_open_local if settings.launcher == "local" else _open_gang)(settings, allowed, interrupt) as hosts:
        yield hosts


@contextlib.contextmanager
def _open_local(settings: WorkerSettings, allowed: Allowed, interrupt: Interrupt) -> Iterator[HostPool | None]:
    with device_hold.hold_devices(settings, settings.ranks) as (gpus, launcher):
        prepared = device_hold.prepare(launcher, lambda: bool(interrupt))
        if interrupt or prepared is None:
            yield None
            return
        operator_build = device_hold.operator_build(settings, launcher, prepared)
        if operator_build is not None and settings.host_partition is not None:
            # Now and not before a trial: the compilers would disturb the runs of the machine's other workers.
            operator_build.run(lambda: bool(interrupt))
        libraries = library_probe.of_prepared(prepared, gpus, ranks_of(gpus, settings.ranks))
        offered = offer(settings, gpus, libraries, allowed, isolation=prepared.isolation)
        yield HostPool(launcher, offered, lambda: detect_again(settings, libraries), operator_build=operator_build)


@contextlib.contextmanager
def _open_gang(settings: WorkerSettings, allowed: Allowed, interrupt: Interrupt) -> Iterator[HostPool | None]:
    private_folder.make(settings.work_dir, "work_dir")
    engine = _engine(settings)
    nodes = settings.nodes or len(engine.hosts())
    plan = GangPlan(
        nodes, _begin(settings), settings.interface, settings.meet_ports, settings.shared_dir, settings.look_again_s
    )
    launcher = GangLauncher(engine, plan, settings.gang_wait_s)
    with contextlib.closing(launcher):
        try:
            launcher.prepare(lambda: bool(interrupt))
        except LaunchFailed:
            if not interrupt:
                raise
            yield None
            return

        def offered() -> Inventory:
            return with_measured(settings, launcher.inventory)

        yield HostPool(launcher, offered(), lambda: offered().fingerprint, engine.worker_name, engine.ends_in_s)


def _engine(settings: WorkerSettings) -> Engine:
    log_dir = settings.work_dir.resolve() / "hosts"
    match settings.launcher:
        case "slurm":
            return SlurmHosts(log_dir, settings.nodes, settings.srun_options)
        case "ray":
            return _ray_hosts(settings, log_dir)
        case "local":
            raise AssertionError("one machine has no engine")
        case _:
            assert_never(settings.launcher)


def _ray_hosts(settings: WorkerSettings, log_dir: Path) -> Engine:
    if settings.nodes is None:
        raise ValueError("nodes (missing) must say how many hosts of the Ray cluster to use: add --nodes N")
    try:
        # Imported late: `ray` is an optional dependency, and its import takes seconds.
        module = importlib.import_module("shardtune.workers.gang.ray_hosts")
    except ModuleNotFoundError as error:
        raise ValueError(f"launcher (ray) needs the package {error.name}; install shardtune[ray]") from None
    engine: Engine = module.RayHosts(
        settings.ray_address, settings.nodes, settings.ranks, log_dir, settings.gang_wait_s
    )
    return engine


def _begin(settings: WorkerSettings) -> Begin:
    host_settings = settings.model_dump(mode="json", include=_HOST_SETTINGS | {"build_operators"}, exclude_none=True)
    if settings.node_dir is not None:
        host_settings["work_dir"] = str(settings.node_dir)
    threads = os.environ.get(THREADS)
    # Engines set it for the processes that they start; the agent's value is the one that the worker's owner chose.
    return Begin(
        settings=host_settings,
        environment={} if threads is None else {THREADS: threads},
        without=(THREADS,) if threads is None else (),
        lease_s=settings.node_lease_s,
    )

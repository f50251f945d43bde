"""What a command works with: this machine in its hands, or a gang of hosts, both behind one launcher."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from shardtune.workers.machine import device_hold, library_probe
from shardtune.workers.machine.inventory import ranks_of
from shardtune.workers.machine.offered_inventory import look_again, offer, with_measured

_HOST_SETTINGS = {
    *("ranks", "memory_gib", "cold", "allowed_models", "allowed_scripts", "host_ready_s"),
    *("min_free_gib", "keep_trials"),
}
"""What each host is told of the worker's."""


@dataclass(frozen=True)
class Held:
    """Hosts that are ready."""

    launcher: Launcher
    offered: Inventory
    look_again: Callable[[], Fingerprint | None]
    """What the fingerprint is by now; None: as before, or not known."""
    worker_name: str | None = None
    """That the engine gives; None: none."""
    ends_in_s: Callable[[], float | None] = lambda: None
    """Until the hosts are taken away."""


@contextlib.contextmanager
def held(settings: WorkerSettings, allowed: Allowed, interrupt: Interrupt, *, builds: bool) -> Iterator[Held | None]:
    """Everything that would cost the first trial time; None when interrupted meanwhile.

    `builds`: DeepSpeed's operators as well, unless the settings say otherwise.
    """
    settings = settings.model_copy(update={"build_operators": builds and settings.build_operators})
    with (_here if settings.launcher == "local" else _over_hosts)(settings, allowed, interrupt) as found:
        yield found


@contextlib.contextmanager
def _here(settings: WorkerSettings, allowed: Allowed, interrupt: Interrupt) -> Iterator[Held | None]:
    with device_hold.hold(settings, settings.ranks) as (gpus, launcher):
        prepared = device_hold.prepare(settings, launcher, lambda: bool(interrupt))
        if interrupt or prepared is None:
            yield None
            return
        libraries = library_probe.found(prepared, gpus, ranks_of(gpus, settings.ranks))
        offered = offer(settings, gpus, libraries, allowed, isolation=prepared.isolation)
        yield Held(launcher, offered, lambda: look_again(settings, libraries))


@contextlib.contextmanager
def _over_hosts(settings: WorkerSettings, allowed: Allowed, interrupt: Interrupt) -> Iterator[Held | None]:
    settings.work_dir.mkdir(parents=True, exist_ok=True)
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

        yield Held(launcher, offered(), lambda: offered().fingerprint, engine.worker_name, engine.ends_in_s)


def _engine(settings: WorkerSettings) -> Engine:
    log_dir = settings.work_dir.resolve() / "hosts"
    if settings.launcher == "slurm":
        return SlurmHosts(log_dir, settings.nodes, settings.srun_options)
    if settings.nodes is None:
        raise ValueError("nodes (missing) must say how many hosts of the Ray cluster are to be used: add --nodes N")
    try:
        # An extra, and seconds of imports.
        module = importlib.import_module("shardtune.workers.gang.ray_hosts")
    except ModuleNotFoundError as error:
        raise ValueError(f"launcher (ray) needs the package {error.name}; install shardtune[ray]") from None
    engine: Engine = module.RayHosts(
        settings.ray_address, settings.nodes, settings.ranks, log_dir, settings.gang_wait_s
    )
    return engine


def _begin(settings: WorkerSettings) -> Begin:
    told = settings.model_dump(mode="json", include=_HOST_SETTINGS | {"build_operators"}, exclude_none=True)
    if settings.node_dir is not None:
        told["work_dir"] = str(settings.node_dir)
    threads = os.environ.get(THREADS)
    # Engines set it for what they start; ours is what the owner of the worker meant.
    return Begin(
        settings=told,
        environment={} if threads is None else {THREADS: threads},
        without=(THREADS,) if threads is None else (),
        lease_s=settings.node_lease_s,
    )

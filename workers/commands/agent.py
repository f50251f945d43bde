"""Default command of the worker: serve trials until interrupted."""

import argparse
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardtune.api_schemas.machines.hardware import HardwareReport, Inventory
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.training.native_dtypes import flops_per_s
from shardtune.workers.agent.attempt import AcquireDevices, Workplace
from shardtune.workers.agent.client import WorkerClient
from shardtune.workers.agent.loop import Agent
from shardtune.workers.commands import split
from shardtune.workers.commands.exit_codes import DONE
from shardtune.workers.commands.host_pool import HostPool, open_hosts
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.launchers.base import Launcher, LaunchFailed
from shardtune.workers.machine import hardware_speed
from shardtune.workers.machine.offered_inventory import with_measured
from shardtune.workers.partitions import device_locks, start_line

Measure = Callable[[Launcher, Inventory, Path, Callable[[], bool]], HardwareReport | None]

log = logging.getLogger(__name__)


def run(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Run the worker until a signal arrives: register it with the service, request leases, run their tasks and report
    the results."""
    if settings.split:
        return split.run(settings, options)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    interrupt = Interrupt().install()
    with open_hosts(settings, allowed, interrupt, builds=True) as hosts:
        if hosts is None:
            return DONE
        hosts = replace(hosts, offered=with_rates(settings, hosts, interrupt))
        if settings.host_partition is not None and not start_line.wait_for_all(lambda: bool(interrupt)):
            return DONE
        offered = hosts.offered
        rates = ", ".join(f"{flops_per_s(rate)} in {dtype}" for dtype, rate in offered.matmul_flops.items())
        log.info("a rank multiplies at %s; native here: %s", rates, offered.fingerprint.native_dtypes)
        settings = settings.model_copy(update={"name": settings.name or hosts.worker_name})
        client = WorkerClient(settings.service, keys=options.keys, proxy=settings.proxy)
        try:
            Agent(settings, client, workplace(settings, hosts, allowed), offered, interrupt, hosts.detect_again).run()
        finally:
            client.close()
    return DONE


def with_rates(
    settings: WorkerSettings, hosts: HostPool, interrupt: Interrupt, measure: Measure = hardware_speed.measure
) -> Inventory:
    """Inventory of the hosts (hardware and software), with rates such as FLOP/s. If neither the GPU catalogue nor an
    earlier start provides these rates, they are measured now."""
    offered = hosts.offered
    # Before registering: measured bandwidths are part of the fingerprint, under which every study is kept.
    is_known = offered.measured is not None or offered.peak_flops is not None
    if is_known or not settings.measure_rates or settings.fingerprint_override:
        return offered
    log.info("the rates of this machine, which guide a search, are unknown: measuring them once (half a minute)")
    try:
        report = measure(hosts.launcher, offered, settings.work_dir, lambda: bool(interrupt))
    except (LaunchFailed, OSError) as error:
        # A full disk, too: the rates only guide a search.
        log.warning("the rates stay unknown: %s", error)
        return offered
    return offered if report is None else with_measured(settings, offered)


def workplace(settings: WorkerSettings, hosts: HostPool, allowed: Allowed) -> Workplace:
    """Workplace (machine, launcher and settings) for attempts on these hosts."""
    offered = hosts.offered
    return Workplace(
        work_dir=settings.work_dir.resolve(),
        launcher=hosts.launcher,
        fingerprint=offered.fingerprint,
        ranks=offered.cluster.world_size,
        nodes=offered.cluster.nodes,
        shared_dir=settings.shared_dir,
        ends_in_s=hosts.ends_in_s,
        peak_flops=offered.peak_flops,
        matmul_flops=offered.matmul_flops,
        min_free_gib=settings.min_free_gib,
        allowed=allowed,
        operator_build=hosts.operator_build,
        acquire_devices=None
        if settings.host_partition is None
        else _partition_devices(settings.work_dir.resolve(), settings.host_partition),
    )


def _partition_devices(work_dir: Path, partition: HostPartition) -> AcquireDevices:
    """Return a function that acquires the devices of a host partition (a part of the machine) for each run. The lock
    files, which all workers of the machine share, are in a folder `locks` beside the workers' work directories."""
    return lambda is_exclusive, give_up: device_locks.hold_for_run(
        work_dir.parent / "locks", partition, is_exclusive, give_up
    )

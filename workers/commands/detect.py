"""Commands `detect` and `measure-hardware`: inventory and rates of the hosts."""

import argparse

from shardtune.workers.commands import human_output
from shardtune.workers.commands.exit_codes import DONE, INTERRUPTED
from shardtune.workers.commands.host_pool import open_hosts
from shardtune.workers.commands.output import print_fields
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.machine import hardware_speed, library_probe
from shardtune.workers.machine.inventory import find_gpus
from shardtune.workers.machine.offered_inventory import offer


def measure_hardware(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Measure how fast this machine does matrix products, memory copies, kernel launches and collectives. The agent
    sends these figures to the service whenever it starts from then on."""
    interrupt = Interrupt().install()
    with open_hosts(settings, Allowed(), interrupt, builds=False) as hosts:
        if hosts is None:
            return INTERRUPTED
        report = hardware_speed.measure(hosts.launcher, hosts.offered, settings.work_dir, lambda: bool(interrupt))
    if report is None:
        return INTERRUPTED
    print(report.model_dump_json() if options.json else human_output.hardware(report))
    return DONE


def detect(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Print the inventory (hardware and software) that a worker on this machine would report to the service."""
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    if settings.launcher != "local":
        with open_hosts(settings, allowed, Interrupt().install(), builds=False) as hosts:
            if hosts is None:
                return INTERRUPTED
            offered = hosts.offered
    else:
        # Without the devices' lock: on one machine, detection disturbs no agent that works there.
        gpus = find_gpus().for_ranks(settings.ranks)
        offered = offer(settings, gpus, library_probe.probe(gpus), allowed)
    print_fields(offered.model_dump(mode="json"), options.json)
    return DONE

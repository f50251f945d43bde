"""The ladder: every program on every number of hosts, from one host to the target."""

import argparse
import os
import sys

from benchmarks.laboratory.hosts import HostRanks
from benchmarks.laboratory.programs import PROGRAMS, slowness
from benchmarks.laboratory.runs import Measurements, Run
from shardtune.api_schemas.machines.hardware import MeasuredHardware
from tests.lab.laboratory import for_this_process


def climb(options: argparse.Namespace) -> Measurements:
    """Measure on a laboratory, which is taken down whatever happens."""
    runs: list[Run] = []
    loads: list[float] = []
    hardware: MeasuredHardware | None = None
    *rungs, target = options.hosts
    with for_this_process(target, 1, options.mbit) as laboratory:
        laboratory.shape(options.mbit, options.delay_ms)
        with HostRanks(laboratory, slowness(options.mbit)) as ranks:
            for hosts in (*rungs, *[target] * options.repeat_target):
                loads.append(round(os.getloadavg()[0], 2))
                for name in options.programs:
                    if hosts >= PROGRAMS[name].fewest_hosts:
                        runs.append(_told(ranks.time(name, hosts, options.steps)))
                if hosts == rungs[-1]:
                    hardware = ranks.measure_hardware(hosts)
    assert hardware is not None
    return Measurements(
        mbit=options.mbit,
        delay_ms=options.delay_ms,
        steps=options.steps,
        hardware=hardware,
        hardware_hosts=rungs[-1],
        runs=tuple(runs),
        load_average=tuple(loads),
    )


def _told(run: Run) -> Run:
    print(
        f"{run.hosts} hosts, {run.program}: {run.median_s:.3f} s a step, {sum(run.cores):.2f} cores",
        file=sys.stderr,
        flush=True,
    )
    return run

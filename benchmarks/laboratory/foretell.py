"""Projections of the laboratory's programs, by the product's own predictor and projection."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.laboratory.programs import PROGRAMS, SHAPE
from benchmarks.laboratory.runs import Measurements
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.tuner.prediction.candidates import Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.rates import Network, Rates
from shardtune.tuner.prediction.throughput import step_times
from shardtune.tuner.prediction.throughput.measured_rates import fallback_network, measured_network
from shardtune.tuner.projection import rung_test
from shardtune.tuner.projection.project import Projection, project
from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize, predict_sizes
from shardtune.tuner.projection.structural import learnt

_FP32 = Dtypes(master=4, compute=4, reduce=4, moments=0.0, linear_bits=32)
_ONLY_PRODUCTS = Rates(
    matmul_flops=1e12, attention_flops=1e18, memory_bytes=1e18, launch_s=1e-12, small_matmul=0.0, overlap=1.0, contention=0.0,
    optimizer_host_s=0.0,
)  # fmt: skip
"""Rates of a rank that waits: matrix products are all of its computation, and all communication can overlap with it."""


@dataclass(frozen=True)
class Foretold:
    """Projection of one program, and what the smaller sizes were."""

    program: str
    projection: Projection
    anchors: tuple[MeasuredSize, ...]
    target: PredictedSize


@dataclass(frozen=True)
class Foresight:
    """Projections of all programs to one number of hosts."""

    programs: tuple[Foretold, ...]
    band_factor: float
    """Factor on the bands, from the rung test: the smaller rungs foretell the largest."""


def foretell(measurements: Measurements, target: int) -> Foresight:
    """Project every program that ran on fewer hosts to the target; its own runs there are not looked at."""
    rungs = [hosts for hosts in measurements.sizes if hosts < target]
    sizes = {name: predicted_sizes(measurements, name, [*rungs, target]) for name in PROGRAMS}
    anchors = {name: _anchors(measurements, name, rungs, sizes[name]) for name in PROGRAMS}
    factor = rung_test.band_factor(_rung_errors(anchors, rungs))
    error = rung_test.widened(factor)
    return Foresight(
        tuple(
            Foretold(
                name, project(anchors[name], sizes[name][target], error), tuple(anchors[name]), sizes[name][target]
            )
            for name in PROGRAMS
            if anchors[name]
        ),
        factor,
    )


def _anchors(
    measurements: Measurements, name: str, rungs: Sequence[int], sizes: dict[int, PredictedSize]
) -> list[MeasuredSize]:
    return [
        MeasuredSize(sizes[hosts], float(np.median([run.median_s for run in runs])))
        for hosts in rungs
        if (runs := measurements.of(name, hosts))
    ]


def _rung_errors(anchors: dict[str, list[MeasuredSize]], rungs: Sequence[int]) -> list[float]:
    """Error of each program's largest rung, projected from the smaller ones, in half-widths of its band."""
    errors = []
    for sizes in anchors.values():
        if len(sizes) < 2 or sizes[-1].predicted.gpus != max(rungs):
            continue
        measured, before = sizes[-1], sizes[:-1]
        speed = project(before, measured.predicted, learnt()).tokens_per_s_per_gpu
        errors.append(
            abs(math.log(measured.tokens_per_s_per_gpu / speed.expected)) / math.log(speed.high / speed.expected)
        )
    return errors


def predicted_sizes(measurements: Measurements, name: str, sizes: Sequence[int]) -> dict[int, PredictedSize]:
    """Predict a program on each number of hosts that it can run on."""
    program, rates, network = PROGRAMS[name], _rates(measurements), _network(measurements)
    counts = [hosts for hosts in sizes if hosts >= program.fewest_hosts]
    rows = [program.row(hosts) for hosts in counts]
    return dict(zip(counts, predict_sizes(SHAPE, rows, _FP32, Implementation(), rates, network), strict=True))


def _rates(measurements: Measurements) -> Rates:
    """Rates with which a rank computes as long as it waits on one host, where nothing is sent."""
    alone = measurements.of("ddp", 1)
    waiting_s = alone[0].median_s if alone else PROGRAMS["ddp"].waiting_s(measurements.mbit)
    one = from_rows([PROGRAMS["ddp"].row(1)])
    computed = step_times(SHAPE, one, _FP32, Implementation(), _ONLY_PRODUCTS, _network(measurements))
    factor = float(np.ravel(computed.total)[0]) / waiting_s
    return replace(_ONLY_PRODUCTS, matmul_flops=_ONLY_PRODUCTS.matmul_flops * factor)


def _network(measurements: Measurements) -> Network:
    """Network as a worker on the largest measured rung knows it."""
    cluster = Cluster(
        device="cpu", nodes=measurements.hardware_hosts, gpus_per_node=1, memory_gib=1.0, host_memory_gib=1.0
    )
    return measured_network(measurements.hardware, cluster, fallback_network(cluster))

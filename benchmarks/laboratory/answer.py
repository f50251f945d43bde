"""Answer of the benchmark: each program, and the figures over all of them."""

from statistics import median
from typing import Any

from benchmarks.laboratory.foretell import Foretold, foretell
from benchmarks.laboratory.programs import PROGRAMS
from benchmarks.laboratory.runs import Measurements
from benchmarks.laboratory.scores import MOST_CORES, MOST_LATE, MOST_SPREAD, Judged, rejection, summary


def answer(measurements: Measurements) -> dict[str, Any]:
    """Judge the projections to the largest number of hosts."""
    target = measurements.sizes[-1]
    foresight = foretell(measurements, target)
    rows: list[dict[str, Any]] = []
    judged: list[Judged] = []
    rejected: list[Judged] = []
    late = _late(measurements)
    for foretold in foresight.programs:
        if not measurements.of(foretold.program, target):
            continue
        item = _judged(measurements, foretold, target)
        reason = rejection(_cores(measurements, foretold.program), _spread(measurements, foretold.program), late)
        rows.append(_row(measurements, foretold, item, target) | {"is_judged": reason is None, "rejection": reason})
        (judged if reason is None else rejected).append(item)
    return {
        "mbit": measurements.mbit,
        "delay_ms": measurements.delay_ms,
        "target_hosts": target,
        "network_measured_on_hosts": measurements.hardware_hosts,
        "steps": measurements.steps,
        "load_average": list(measurements.load_average),
        "limits": {"cores": MOST_CORES, "late": MOST_LATE, "unsteady": MOST_SPREAD},
        "late": late,
        "band_factor": round(foresight.band_factor, 3),
        "programs": rows,
        "summary": summary(judged) | {"rejected": len(rejected)},
        "with_rejected": summary([*judged, *rejected]),
        "runs_of_target": _differences(measurements, target),
    }


def _judged(measurements: Measurements, foretold: Foretold, target: int) -> Judged:
    seconds = median(step for run in measurements.of(foretold.program, target) for step in run.seconds)
    smaller = {anchor.predicted.gpus: anchor.tokens_per_s_per_gpu for anchor in foretold.anchors}
    return Judged(
        program=foretold.program,
        measured=foretold.target.tokens_per_gpu / seconds,
        projected=foretold.projection.tokens_per_s_per_gpu,
        same_per_gpu=smaller[max(smaller)],
        smaller=smaller,
    )


def _row(measurements: Measurements, foretold: Foretold, item: Judged, target: int) -> dict[str, Any]:
    by_hosts = {hosts: runs for hosts in measurements.sizes if (runs := measurements.of(foretold.program, hosts))}
    tokens = foretold.target.tokens_per_gpu
    predicted = [*(anchor.predicted for anchor in foretold.anchors), foretold.target]
    return {
        "program": foretold.program,
        "label": PROGRAMS[foretold.program].label,
        "measured": round(item.measured, 3),
        "projected": round(item.projected.expected, 3),
        "band": [round(item.projected.low, 3), round(item.projected.high, 3)],
        "error": round(item.error, 4),
        "is_inside": item.is_inside,
        "same_per_gpu_error": round(item.same_per_gpu_error, 4),
        "anchors": list(foretold.projection.anchors),
        "projected_step_s": round(tokens / item.projected.expected, 3),
        "step_s": {hosts: [round(run.median_s, 4) for run in runs] for hosts, runs in by_hosts.items()},
        "predicted_step_s": {size.gpus: round(size.seconds, 4) for size in predicted},
        "step_iqr": {hosts: round(spread, 4) for hosts, spread in _spread(measurements, foretold.program).items()},
        "cores": {hosts: round(cores, 3) for hosts, cores in _cores(measurements, foretold.program).items()},
        "cores_per_rank": round(_cores(measurements, foretold.program)[target] / target, 4),
    }


def _cores(measurements: Measurements, program: str) -> dict[int, float]:
    """Cores that all ranks together used, by number of hosts: the most of several runs."""
    return {
        hosts: max(sum(run.cores) for run in runs)
        for hosts in measurements.sizes
        if (runs := measurements.of(program, hosts))
    }


def _spread(measurements: Measurements, program: str) -> dict[int, float]:
    """Interquartile range of steps over their median, by number of hosts: the largest of several runs."""
    return {
        hosts: max(run.spread for run in runs)
        for hosts in measurements.sizes
        if (runs := measurements.of(program, hosts))
    }


def _late(measurements: Measurements) -> float | None:
    """Part by which steps on one host exceeded their waiting, in the program with the least work of its own."""
    alone = [run for run in measurements.runs if run.hosts == 1]
    return min(
        (round(run.median_s / PROGRAMS[run.program].waiting_s(measurements.mbit) - 1.0, 4) for run in alone),
        default=None,
    )


def _differences(measurements: Measurements, target: int) -> dict[str, Any]:
    """Differences between two runs of the target, as fractions of the faster."""
    differences = {}
    for name in PROGRAMS:
        times = [run.median_s for run in measurements.of(name, target)]
        if len(times) > 1:
            differences[name] = round(max(times) / min(times) - 1.0, 4)
    if not differences:
        return {"programs": 0}
    return {"programs": len(differences), "median": median(differences.values()), "largest": max(differences.values())}

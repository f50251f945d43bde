"""Judge projections against what the target's hosts measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from shardtune.tuner.projection.project import ProjectedValue

MOST_CORES = 0.4
"""Most cores that the ranks of one run may use together. At twice the bandwidth they use 0.8 of two cores, and half of the
error of a projection is theirs: the cores are measured, not the network."""
MOST_LATE = 0.05
"""Most by which a step on one host may exceed its waiting: beyond it, other programs hold the ranks up."""
MOST_SPREAD = 0.07
"""Largest interquartile range of a run's steps, as a fraction of their median: beyond it, two runs of the same thing differ by
more than the error that is looked for."""
APART = 0.05
"""Difference of speed from which the order of two programs counts."""


@dataclass(frozen=True)
class Judged:
    """One program on the target: measured there, and projected from fewer hosts."""

    program: str
    measured: float
    """Measured tokens per second and GPU."""
    projected: ProjectedValue
    same_per_gpu: float
    """Measured tokens per second and GPU on the largest smaller size."""
    smaller: Mapping[int, float]
    """Measured tokens per second and GPU by number of hosts below the target."""

    @property
    def error(self) -> float:
        """Error of the projection, relative to what was measured."""
        return self.projected.expected / self.measured - 1.0

    @property
    def same_per_gpu_error(self) -> float:
        """Error of "the same per GPU as on the largest smaller size"."""
        return self.same_per_gpu / self.measured - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the band contains what was measured."""
        return self.projected.low <= self.measured <= self.projected.high


def rejection(cores: Mapping[int, float], spread: Mapping[int, float], late: float | None) -> dict[str, object] | None:
    """Reason not to judge a program; None where there is none.

    `cores`: cores that all ranks together used, by number of hosts. `spread`: interquartile range of steps over their median,
    by number of hosts. `late`: part by which steps on one host exceeded their waiting, where any ran on one.
    """
    for code, values, most in (
        ("cores", cores, MOST_CORES),
        ("late", {} if late is None else {1: late}, MOST_LATE),
        ("unsteady", spread, MOST_SPREAD),
    ):
        hosts = max(values, key=lambda count: values[count], default=0)
        if values and values[hosts] > most:
            return {"reason_code": code, "hosts": hosts, "value": round(values[hosts], 3), "most": most}
    return None


def summary(judged: Sequence[Judged]) -> dict[str, object]:
    """Figures over all judged programs."""
    if not judged:
        return {"programs": 0}
    errors = [abs(item.error) for item in judged]
    pairs = _pairs(judged)
    right = [pair for pair in pairs if _faster_projected(*pair)]
    return {
        "programs": len(judged),
        "median_error": round(median(errors), 4),
        "worst_error": round(max(errors), 4),
        "within_10_percent": sum(error <= 0.10 for error in errors),
        "inside_band": round(sum(item.is_inside for item in judged) / len(judged), 3),
        "same_per_gpu": _same_per_gpu(judged),
        "pairs": len(pairs),
        "pairs_ordered_right": len(right),
        "changing_pairs": changing_pairs(judged),
    }


def _same_per_gpu(judged: Sequence[Judged]) -> dict[str, float]:
    errors = [abs(item.same_per_gpu_error) for item in judged]
    return {"median_error": round(median(errors), 4), "worst_error": round(max(errors), 4)}


def _pairs(judged: Sequence[Judged]) -> list[tuple[Judged, Judged]]:
    """Pairs (faster, slower) on the target that are far enough apart for their order to count."""
    ordered = sorted(judged, key=lambda item: -item.measured)
    return [pair for pair in combinations(ordered, 2) if _is_faster(pair[0].measured, pair[1].measured)]


def _is_faster(first: float, second: float) -> bool:
    return math.log(first / second) > math.log1p(APART)


def _faster_projected(faster: Judged, slower: Judged) -> bool:
    return faster.projected.expected > slower.projected.expected


def changing_pairs(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """Pairs (faster, slower on the target) with the other order on a smaller size, both times far enough apart."""
    found: list[dict[str, object]] = []
    for faster, slower in _pairs(judged):
        common = [hosts for hosts in faster.smaller if hosts > 1 and hosts in slower.smaller]
        changed = [hosts for hosts in common if _is_faster(slower.smaller[hosts], faster.smaller[hosts])]
        if changed:
            found.append(
                {
                    "faster": faster.program,
                    "slower": slower.program,
                    "other_order_on_hosts": changed,
                    "is_foretold": _faster_projected(faster, slower),
                }
            )
    return found

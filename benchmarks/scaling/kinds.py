"""Projections to another kind of GPU: one configuration on as many GPUs of two kinds, published by one source."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.predictor.rows import Case
from benchmarks.scaling.groups import DATA, SAME, measured_case, shard_families, uncontradicted
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection.project import Projection, project
from shardtune.tuner.projection.sizes import MeasuredSize
from shardtune.tuner.projection.structural import StructuralError, learnt, owner

_JOB = tuple(name for name in SAME if name != "gpu")


@dataclass(frozen=True)
class KindPair:
    """One configuration on as many GPUs of two kinds, projected from one kind to the other."""

    source: str
    measured: MeasuredSize
    target: MeasuredSize
    projection: Projection

    @property
    def slowness(self) -> float:
        """Logarithm of measured over projected step time."""
        return math.log(self.projection.tokens_per_s_per_gpu.expected / self.target.tokens_per_s_per_gpu)

    @property
    def by_peaks(self) -> float:
        """Logarithm of measured over expected step time, if both kinds reached the same fraction of their peaks."""
        first, second = (_peak(size) for size in (self.measured, self.target))
        return math.log(self.measured.tokens_per_s_per_gpu * second / first / self.target.tokens_per_s_per_gpu)

    @property
    def is_covered(self) -> bool:
        """Whether the measured speed is within the band of the projection."""
        band = self.projection.tokens_per_s_per_gpu
        return band.low <= self.target.tokens_per_s_per_gpu <= band.high


def _peak(size: MeasuredSize) -> float:
    peak = catalogue.find(size.predicted.gpu).peak_flops
    assert peak is not None, "a GPU with rates has a peak"
    return peak


def pairs(path: Path, *, is_blind: bool = True) -> list[KindPair]:
    """Pairs of a file in the format of `published.csv`, each projected from either kind to the other. Bands are learnt
    without the pair's own source, unless `is_blind` is False, where they have no width."""
    return [
        KindPair(source, first, second, project([first], second.predicted, _error(source, is_blind=is_blind)))
        for source, both in _same_jobs(path)
        for first, second in (both, both[::-1])
    ]


def _error(source: str, *, is_blind: bool) -> StructuralError:
    return learnt(frozenset({owner(source)})) if is_blind else StructuralError(drift=0.0, width=0.0)


def _same_jobs(path: Path) -> list[tuple[str, tuple[MeasuredSize, MeasuredSize]]]:
    jobs: dict[tuple[object, ...], dict[str, list[MeasuredSize]]] = defaultdict(lambda: defaultdict(list))
    for case in uncontradicted(path, DATA / "hardware.csv"):
        size = _of_kind(case)
        key = (*(case.row[name] for name in (*_JOB, "n_gpus")), str(case.implementation), *shard_families(case))
        jobs[(*key, round(case.candidate["accumulation"]))][size.predicted.gpu].append(size)
    return [
        (str(key[0]), (_middle(sizes[first]), _middle(sizes[second])))
        for key, sizes in jobs.items()
        for first, second in combinations(sorted(sizes), 2)
    ]


def _of_kind(case: Case) -> MeasuredSize:
    size = measured_case(case)
    return replace(size, predicted=replace(size.predicted, gpu=case.gpu.name))


def _middle(sizes: Sequence[MeasuredSize]) -> MeasuredSize:
    return sorted(sizes, key=lambda size: size.seconds)[len(sizes) // 2]


def kind_errors(path: Path) -> dict[str, list[float]]:
    """Logarithms of measured over projected time by source, from the kind that comes first in the alphabet to the other:
    the other way has the same errors with the other sign."""
    errors: dict[str, list[float]] = {}
    for pair in pairs(path, is_blind=False)[::2]:
        errors.setdefault(pair.source, []).append(round(pair.slowness, 4))
    return errors


def figures(listed: Sequence[KindPair]) -> dict[str, Any]:
    """Errors of projections to another kind; beside them those of expecting the same fraction of the peak. Pairs weigh
    the same, as nearly all are of one source."""
    sources = Counter(pair.source for pair in listed)
    return {
        "pairs": len(listed),
        **_quantiles([abs(math.expm1(pair.slowness)) for pair in listed]),
        "coverage_90": round(sum(pair.is_covered for pair in listed) / len(listed), 4) if listed else None,
        "same_fraction_of_peak": _quantiles([abs(math.expm1(pair.by_peaks)) for pair in listed]),
        "by_source": dict(sources),
    }


def _quantiles(errors: Sequence[float]) -> dict[str, float | None]:
    levels = {"median_error": 0.5, "p90_error": 0.9}
    return {name: round(float(np.quantile(errors, level)), 4) if errors else None for name, level in levels.items()}

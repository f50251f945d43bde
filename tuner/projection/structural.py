"""Structural error of a projection: what runs lose with each doubling of the GPUs beyond the predicted ratio, and how
far a projection is off. Both are learnt from published scaling runs, each source with the same weight."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median, pvariance
from typing import NamedTuple

from shardtune.tuner.projection.published_errors import PUBLISHED_ERRORS, PUBLISHED_KIND_ERRORS

_NOMINAL = 0.90
"""Fraction of measurements that the band of a projection should contain."""
_FIRST = 1.0
"""Error of a projection to the same number of GPUs, from the noise of the two runs, as a multiple of the error that
each doubling of the GPUs adds."""

_FEWEST_KIND_ERRORS = 10
"""Minimum number of published runs from which the band of projections to another kind of GPU is learnt."""
_UNKNOWN_KIND = 0.35
"""Half-width of the band of a projection to another kind of GPU (in logarithm of time) where too few published runs are
left to learn it from; assumed."""


class ScalingError(NamedTuple):
    """Error of one projection from a published run to another published run with more GPUs."""

    doublings: float
    """Number of doublings of the GPUs from the smaller run to the larger one."""
    unseen: int
    """Number of parallel axes that the larger run uses and the smaller one does not."""
    slowness: float
    """Logarithm of measured over projected step time, for a projection without drift (an assumed slow-down with each
    doubling of the GPUs)."""
    open_width: float
    """Part of the band's half-width that comes from not knowing how far predicted communication time is off."""


@dataclass(frozen=True)
class StructuralError:
    """Correction and uncertainty of projections to more GPUs, fitted to published runs."""

    drift: float
    """Logarithm by which each doubling of the GPUs slows a step down, beyond what is predicted."""
    width: float
    """Half-width of the 90 % band that each doubling of the GPUs adds, in logarithm of time."""
    sources: int = 0
    """Number of published sources that `drift` and `width` were fitted to."""
    shared: float = 0.0
    """Fraction of the error's variance that all projections of one source share, since a source has one network and one
    program."""

    kind_width: float = 0.0
    """Half-width of the 90 % band of a projection to another kind of GPU, in logarithm of time."""

    widening: float = 1.0
    """Factor by which a rung test widens the half-width that size and unseen aspects give; 1 without one."""

    def half_width(
        self, doublings: float, unseen: int = 0, open_width: float = 0.0, *, other_gpu: bool = False
    ) -> float:
        """Half-width of the 90 % band in logarithm of time. It grows linearly with doublings of the GPUs; each aspect
        of the target that no measurement covers counts as one more doubling. `open_width`: part that comes from not
        knowing how far predicted communication time is off. `other_gpu`: whether the target has another kind of GPU,
        whose error is independent of the others: the squares of both half-widths are added."""
        of_size = self.widening * (self.width * (_FIRST + doublings + unseen) + open_width)
        return math.hypot(of_size, self.kind_width) if other_gpu else of_size


@lru_cache(maxsize=64)
def learnt(without: frozenset[str] = frozenset()) -> StructuralError:
    """Fit the error model of projections to the published runs, without sources of the owners in `without` (such as
    `mosaicml`)."""
    sizes = {name: errors for name, errors in PUBLISHED_ERRORS.items() if owner(name) not in without}
    kinds = {name: errors for name, errors in PUBLISHED_KIND_ERRORS.items() if owner(name) not in without}
    return replace(learn(sizes), kind_width=learn_kinds(kinds))


def learn_kinds(errors: Mapping[str, Sequence[float]]) -> float:
    """Half-width of the 90 % band of a projection to another kind of GPU, from its errors in published runs (logarithms
    of measured over projected time, by source). Runs weigh the same, as nearly all are of one source."""
    sizes = [(abs(error), 1.0) for listed in errors.values() for error in listed]
    return weighted_quantile([sizes], _NOMINAL) if len(sizes) >= _FEWEST_KIND_ERRORS else _UNKNOWN_KIND


def owner(source: str) -> str:
    """Owner of a source of published runs: `mosaicml` for `mosaicml/llm-foundry@HEAD:README.md`."""
    return source.removeprefix("https://").partition("@")[0].partition("/")[0].strip()


def learn(errors: Mapping[str, Sequence[tuple[float, int, float, float]]]) -> StructuralError:
    """Fit drift and width of the error model to the errors of each source; sources weigh the same, however many runs
    they have."""
    sources = {name: [ScalingError(*error) for error in listed] for name, listed in errors.items() if listed}
    if not sources:
        return StructuralError(drift=0.015, width=0.05)
    drift = median(median(error.slowness / error.doublings for error in listed) for listed in sources.values())
    by_source: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, listed in sources.items():
        for error in listed:
            beyond = max(abs(error.slowness - drift * error.doublings) - error.open_width, 0.0)
            size = beyond / (_FIRST + error.doublings + error.unseen)
            by_source[name].append((size, 1.0 / len(listed)))
    width = weighted_quantile(by_source.values(), _NOMINAL)
    return StructuralError(drift, width, len(sources), _shared_fraction(sources.values(), drift))


def _shared_fraction(sources: Collection[Sequence[ScalingError]], drift: float) -> float:
    """Fraction of the errors' variance that lies between the means of sources, each source with the same weight."""
    scaled = [
        [(error.slowness - drift * error.doublings) / (_FIRST + error.doublings + error.unseen) for error in listed]
        for listed in sources
    ]
    between = pvariance([fmean(listed) for listed in scaled])
    within = fmean(pvariance(listed) for listed in scaled)
    return between / (between + within) if between + within > 0 else 0.0


def weighted_quantile(groups: Collection[Sequence[tuple[float, float]]], level: float) -> float:
    """Quantile of the values of all groups, each value with its weight."""
    values = sorted(value for group in groups for value in group)
    total, reached = sum(weight for _, weight in values), 0.0
    for value, weight in values:
        reached += weight
        if reached >= level * total - 1e-12:
            return value
    return values[-1][0]

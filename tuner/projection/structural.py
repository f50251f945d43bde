"""Structural error of a projection: what runs lose with each doubling of the GPUs beyond the predicted ratio, and how
far a projection is off. Both are learnt from published scaling runs, each source with the same weight."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, pvariance
from typing import NamedTuple

from shardtune.tuner.projection.published_errors import PUBLISHED_ERRORS

_NOMINAL = 0.90
"""Fraction of measurements that the band of a projection should contain."""
_FIRST = 1.0
"""Number of doublings' worth of error that a projection has before its first doubling: noise of the two runs."""


class ScalingError(NamedTuple):
    """Error of one projection from a published run to a run with more GPUs."""

    doublings: float
    """Number of doublings of the GPUs between the anchor and the target."""
    unseen: int
    """Number of parallel axes that the target uses and the anchor does not."""
    slowness: float
    """Logarithm of measured over projected time, without any drift."""
    open_width: float
    """Half-width that the unknown factor on communication gave the band."""


@dataclass(frozen=True)
class StructuralError:
    """Correction and uncertainty of projections to more GPUs, fitted to published runs."""

    drift: float
    """Logarithm by which a step slows down with each doubling of the GPUs, beyond the predicted ratio."""
    width: float
    """Half-width of the 90 % band, as a logarithm of time for each doubling."""
    sources: int = 0
    """Number of sources that drift and width were learnt from."""
    shared: float = 0.0
    """Fraction of the variance that projections of one source, and so of one network and program, have in common."""

    def half_width(self, doublings: float, unseen: int = 0) -> float:
        """Half-width of the 90 % band in logarithm of time: linear in doublings, with one more for each axis that no
        measurement has shown."""
        return self.width * (_FIRST + doublings + unseen)


@lru_cache(maxsize=64)
def learnt(without: frozenset[str] = frozenset()) -> StructuralError:
    """Fit the structural error to the published runs, without those of the owners in `without` (such as `mosaicml`)."""
    return learn({name: errors for name, errors in PUBLISHED_ERRORS.items() if owner(name) not in without})


def owner(source: str) -> str:
    """Owner of a source: `mosaicml` of `mosaicml/llm-foundry@HEAD:README.md`."""
    return source.removeprefix("https://").partition("@")[0].partition("/")[0].strip()


def learn(errors: Mapping[str, Sequence[tuple[float, int, float, float]]]) -> StructuralError:
    """Fit drift and width to errors by source; sources count equally, however many runs they have."""
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
    """Variance between the means of sources over the whole variance of errors, each source with the same weight."""
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

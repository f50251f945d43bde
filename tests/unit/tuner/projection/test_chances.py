"""Chance of each projected configuration to be the fastest."""

import math
import tracemalloc
from dataclasses import replace

import pytest

from shardtune.tuner.projection.chances import ProjectedSpeed, chances_of_best
from shardtune.tuner.projection.published_errors import PUBLISHED_ERRORS
from shardtune.tuner.projection.structural import StructuralError, learn, learnt

ERROR = StructuralError(drift=0.0, width=0.01, shared=0.4)


def speed(trial: int, expected: float, half_width: float = 0.08) -> ProjectedSpeed:
    """Projected speed of a trial with this half-width of its band, in logarithm."""
    return ProjectedSpeed(trial, expected, expected * math.exp(half_width))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_equal_configurations_get_equal_chances(count: int) -> None:
    chances = chances_of_best([speed(number, 1000.0) for number in range(count)], ERROR)
    assert sum(chances) == pytest.approx(1.0)
    assert chances == pytest.approx([1 / count] * count, abs=0.01)


def test_a_faster_configuration_has_a_better_chance_and_a_far_slower_one_none() -> None:
    first, second, third = chances_of_best([speed(1, 1000), speed(2, 980), speed(3, 500)], ERROR)
    assert first > second > 0.05 and third == 0.0


def test_wider_bands_bring_the_chances_together() -> None:
    narrow, wide = (chances_of_best([speed(1, 1000, width), speed(2, 950, width)], ERROR)[0] for width in (0.03, 0.3))
    assert narrow > wide > 0.5


def test_what_all_configurations_share_cancels_in_their_comparison() -> None:
    speeds = [speed(1, 1000, 0.2), speed(2, 950, 0.2)]
    apart, together = (chances_of_best(speeds, replace(ERROR, shared=shared))[0] for shared in (0.0, 0.9))
    assert together > apart + 0.1


def test_projections_of_one_trial_share_the_noise_of_its_runs() -> None:
    noisy = replace(ERROR, width=0.08)
    same, others = (chances_of_best([speed(1, 1000), speed(number, 950)], noisy)[0] for number in (1, 2))
    assert same == 1.0 and others < 0.95


def test_the_shared_fraction_is_learnt_from_what_runs_of_one_source_have_in_common() -> None:
    assert 0.1 < learnt().shared < 0.7
    alike = {"a/x": [(1.0, 0, 0.02, 0.0)] * 3, "b/y": [(1.0, 0, -0.02, 0.0)] * 3}
    assert learn(alike).shared == pytest.approx(1.0)
    mixed = {name: [(1.0, 0, 0.02, 0.0), (1.0, 0, -0.02, 0.0)] for name in ("a/x", "b/y")}
    assert learn(mixed).shared == pytest.approx(0.0)
    assert len(PUBLISHED_ERRORS) == learnt().sources


def test_without_configurations_there_are_no_chances() -> None:
    assert chances_of_best([]) == []


def test_a_thousand_configurations_need_no_more_memory_than_the_fastest_of_them() -> None:
    speeds = [speed(number, 1000.0 - number) for number in range(1000)]
    tracemalloc.start()
    try:
        chances = chances_of_best(speeds[::-1], ERROR)[::-1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**27
    assert sum(chances) == pytest.approx(1.0) and chances[0] == max(chances) and chances[999] == 0.0

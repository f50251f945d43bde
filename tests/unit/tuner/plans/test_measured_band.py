"""Band of a measured speed: from its runs, or from published ones where it has no two."""

import math

import pytest

from shardtune.tuner.plans.measured_band import measured_band
from shardtune.tuner.projection.structural import learnt
from tests.support.values.planned_studies import contenders


def test_a_measured_band_is_the_prediction_interval_of_the_runs() -> None:
    side = contenders()[0]
    band, speed = measured_band(side), side.tokens_per_s_per_gpu
    assert band.expected == speed and speed / band.low == pytest.approx(band.high / speed)
    # Seven runs within 2 %: a deviation of 0.74 %, and Student's t for six degrees of freedom.
    expected = 1.943 * math.log(1.01 / 0.99) / 2.704 * math.sqrt(1 + 1 / 7)
    assert math.log(band.high / speed) == pytest.approx(expected)
    unknown = learnt().half_width(0.0)
    single = measured_band(side.model_copy(update={"runs": 1, "spread": None}))
    assert math.log(single.high / speed) == pytest.approx(unknown)
    disturbed = measured_band(side, is_disturbed=True)
    assert math.log(disturbed.high / speed) == pytest.approx(max(unknown, expected))
    same = measured_band(side.model_copy(update={"spread": (speed, speed)}))
    assert same.low == same.high == speed

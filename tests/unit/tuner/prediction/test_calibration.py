"""Calibration: a few factors from measured trials."""

import numpy as np
import pytest

from shardtune.tuner.prediction.calibration import PARTS, MemoryCalibration, fit_memory, fit_speed


def _parts(seed: int) -> dict[str, float]:
    random = np.random.default_rng(seed)
    return dict(zip(PARTS, random.uniform(0.1, 1.0, len(PARTS)), strict=True))


def test_one_row_moves_the_shared_factor() -> None:
    parts = _parts(0)
    fitted = fit_speed([parts], [1.3 * sum(parts.values())])
    again = float(fitted.seconds({name: np.array([value]) for name, value in parts.items()})[0])
    assert again == pytest.approx(1.3 * sum(parts.values()), rel=0.03)


def test_many_rows_tell_the_parts_apart() -> None:
    rows = [_parts(seed) for seed in range(60)]
    measured = [sum(row.values()) + row["attention"] for row in rows]  # attention takes twice the time
    factors = fit_speed(rows, measured).factors
    assert factors["attention"] == pytest.approx(2.0, rel=0.1)
    assert factors["matmul"] == pytest.approx(1.0, rel=0.1)


def test_one_outlier_does_not_move_the_rest() -> None:
    rows = [_parts(seed) for seed in range(20)]
    measured = [sum(row.values()) for row in rows]
    measured[3] *= 3
    fitted = fit_speed(rows, measured)
    predicted = float(fitted.seconds({name: np.array([value]) for name, value in rows[0].items()})[0])
    assert predicted == pytest.approx(measured[0], rel=0.05)


def test_measured_time_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"measured_s \(0\.0\) must be positive"):
        fit_speed([_parts(0)], [0.0])


def test_memory_margin_shrinks_with_agreement_but_not_to_nothing() -> None:
    fitted = fit_memory([10.0, 20.0, 30.0], [10.1, 20.2, 30.3])
    assert 1.0 < fitted.factor < 1.01
    assert 0.02 < fitted.sigma < MemoryCalibration().sigma
    low, high = fitted.bounds(10.0)
    assert low < 10.0 < high

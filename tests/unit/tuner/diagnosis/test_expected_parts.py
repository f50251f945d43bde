"""Each part of a step beside what was predicted for it, what is furthest off first."""

import pytest

from shardtune.api_schemas.trials.predictions import SpeedPrediction
from shardtune.tuner.diagnosis.expected_parts import expected_parts
from tests.support.service.simulated_worker import diagnosis

PREDICTED = {
    "matmul": 0.2,
    "vector_matmul": 0.0,
    "attention": 0.1,
    "elementwise": 0.05,
    "launch": 0.04,
    "backend": 0.01,
    "communication": 0.02,
    "step": 0.07,
    "offload": 0.03,
}


def speed() -> SpeedPrediction:
    return SpeedPrediction(
        tokens_per_s_per_gpu=100.0,
        low_tokens_per_s_per_gpu=50.0,
        high_tokens_per_s_per_gpu=200.0,
        step_time_s=sum(PREDICTED.values()),
        mfu=None,
        exposed_communication_fraction=0.1,
        bound_by="compute",
        parts_s=PREDICTED,
    )


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", {"computing": (0.4, 0.7), "communication": (0.02, 0.2), "optimizer": (0.1, 0.1)}),
        (
            "cuda",
            {
                "communication": (0.02, 0.2),
                "computing": (0.35, 0.5),
                "launching": (0.05, 0.2),
                "optimizer": (0.1, 0.1),
            },
        ),
    ],
)
def test_every_predicted_second_has_a_measured_one_beside_it_and_the_furthest_off_comes_first(device, expected):
    parts = expected_parts(diagnosis(device=device), speed())
    observed = {part.name: (round(part.expected_s, 9), round(part.measured_s, 9)) for part in parts}
    assert observed == expected
    off = [abs(part.measured_s - part.expected_s) for part in parts]
    assert off == sorted(off, reverse=True)
    assert sum(part.expected_s for part in parts) == pytest.approx(speed().step_time_s)

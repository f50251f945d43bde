"""Failures are told apart by type and place, never by their text; warm-up and timing end by arithmetic alone."""

import pytest
import torch

from shardtune.api_schemas.failures import FailureKind
from shardtune.api_schemas.measurements import MeasurePlan
from shardtune.workers.rank import classify
from shardtune.workers.rank.measure import throughput

PLAN = MeasurePlan(window_steps=2, min_windows=2, max_windows=4, target_half_width=0.05, max_measure_s=10)


@pytest.mark.parametrize(
    ("error", "phase", "kind"),
    [
        (torch.OutOfMemoryError("anything"), "training", FailureKind.OOM),
        (MemoryError(), "building", FailureKind.OOM),
        (ValueError("out of memory"), "building", FailureKind.ILLEGAL),
        (ValueError("out of memory"), "training", FailureKind.CRASH),
        (RuntimeError("CUDA out of memory"), "training", FailureKind.CRASH),
        (AssertionError("ours"), "building", FailureKind.CRASH),
        (classify.NumericsError("loss is nan"), "training", FailureKind.NUMERICS),
        (classify.SetupError("no compiler"), "starting", FailureKind.SETUP),
    ],
)
def test_kind_follows_from_type_and_phase(error: Exception, phase: classify.Phase, kind: FailureKind) -> None:
    assert classify.failure_of(error, phase, rank=1).kind is kind


def test_a_step_is_steady_after_three_alike() -> None:
    assert not throughput.is_steady([1.0, 1.0])
    assert not throughput.is_steady([1.0, 1.2, 1.0])
    assert throughput.is_steady([5.0, 1.0, 1.02, 1.01])


@pytest.mark.parametrize(
    ("times", "enough"),
    [([1.0], False), ([1.0, 1.0], True), ([1.0, 1.5], False), ([1.0, 1.5, 1.0, 1.5], True), ([3.0, 4.0], True)],
    ids=["too few", "narrow interval", "wide interval", "all windows", "out of time"],
)
def test_timing_ends_when_the_plan_is_satisfied(times: list[float], enough: bool) -> None:
    assert throughput.is_enough(times, PLAN) is enough

"""Finished runs within their memory limit."""

import pytest

from shardtune.api_schemas.trials.measurements import Memory
from shardtune.api_schemas.trials.objective import Objective
from shardtune.tuner import objective
from tests.support.values.tuner_inputs import gpus, measured


@pytest.mark.parametrize(
    ("counts", "words"),
    [({}, None), ({"allocator_retries": 0, "allocator_ooms": 0}, None), ({"allocator_retries": 2}, "2 times")],
)
def test_a_run_that_only_went_on_by_emptying_its_cache_is_over_the_limit(
    counts: dict[str, int], words: str | None
) -> None:
    memory = Memory(peak_allocated_gib=40, peak_reserved_gib=50, device_used_gib=52, **counts)
    over_limit = objective.over_limit_failure(measured(100).model_copy(update={"memory": memory}), gpus(), Objective())
    assert (over_limit is None) == (words is None)
    assert words is None or (
        over_limit is not None and words in over_limit.message and over_limit.peak_allocated_gib == 40
    )


def test_the_steps_of_a_long_run_are_counted_although_a_report_has_its_first_losses_alone() -> None:
    memory = Memory(peak_allocated_gib=40, allocator_retries=2)
    run = measured(100).model_copy(update={"memory": memory, "measured_steps": 12_000, "losses": (4.0,) * 5000})
    over_limit = objective.over_limit_failure(run, gpus(), Objective())
    steps = 12_000 + run.warmup_steps + len(run.trajectory)
    assert over_limit is not None and over_limit.message.startswith(f"over {steps} steps the CUDA allocator")

"""Rows of plans that were measured: their very configuration, batch and speed, and nothing that only resembles them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.service.mcp.plan_tool import plan_answer
from shardtune.tuner.plans.plan import plan

NOW = datetime(2026, 11, 25, tzinfo=UTC)
RUN: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "tokens": 3e11,
    "gpus": ["h100"],
    "counts": [16, 32],
    "global_batch": 128,
}


def rows(*measurements: dict[str, Any]) -> tuple[PlanRow, ...]:
    return plan(PlanRequest.model_validate(RUN | {"measurements": measurements}), NOW).rows


def measurement_of(row: PlanRow, speed: float, accumulation: int = 0, **strategy: Any) -> dict[str, Any]:
    """Measurement of a planned row, of whose strategy some settings may differ."""
    config = row.config.model_dump()
    return {
        "gpu": "h100", "gpus": row.gpus, "config": config | {"strategy": config["strategy"] | strategy},
        "gradient_accumulation": accumulation or accumulation_of(row), "tokens_per_s_per_gpu": speed,
    }  # fmt: skip


def accumulation_of(row: PlanRow) -> int:
    return row.global_batch // (row.config.micro_batch * row.config.data_ranks(row.gpus))


def test_a_row_of_the_very_measurement_is_measured_and_has_its_speed() -> None:
    first = rows()[0]
    speed = 0.8 * first.tokens_per_s_per_gpu.expected
    same, larger = rows(measurement_of(first, speed))
    assert (same.evidence, larger.evidence) == ("measured", "projected") and same.config == first.config
    band = same.tokens_per_s_per_gpu
    assert band.expected == pytest.approx(speed, rel=1e-9) and band.low < speed < band.high
    assert same.extrapolated_from == larger.extrapolated_from == (16,)
    longer = measurement_of(first, speed, accumulation_of(first) + 1)
    assert rows(longer)[0].evidence == "projected"


def test_measurements_at_other_sizes_leave_a_measured_speed_as_it_is() -> None:
    small, large = rows()
    speeds = 0.8 * small.tokens_per_s_per_gpu.expected, 0.85 * large.tokens_per_s_per_gpu.expected
    again = rows(measurement_of(small, speeds[0]), measurement_of(large, speeds[1]))
    assert [(row.evidence, row.extrapolated_from) for row in again] == [("measured", (16,)), ("measured", (32,))]
    assert [row.tokens_per_s_per_gpu.expected for row in again] == pytest.approx(speeds, rel=1e-9)


@pytest.mark.parametrize("strategy", [{"cpu_offload": True}, {"reshard_after_forward": "other"}])
def test_a_measurement_with_other_settings_makes_no_row_measured(strategy: dict[str, Any]) -> None:
    first = rows()[0]
    assert isinstance(first.config.strategy, Fsdp2Config)
    if "reshard_after_forward" in strategy:
        strategy = {"reshard_after_forward": not first.config.strategy.reshard_after_forward}
    other = measurement_of(first, 3000.0, **strategy)
    assert [row.evidence for row in rows(other)] == ["projected", "projected"]


def test_agents_get_time_and_cost_of_a_measured_row_as_projected() -> None:
    first = rows()[0]
    request = RUN | {"counts": [16], "prices": {"h100": 2.0}, "measurements": [measurement_of(first, 3000.0)]}
    (choice,) = plan_answer(plan(PlanRequest.model_validate(request), NOW), 5).choices
    assert (choice.speed.basis, choice.speed.source) == ("measured", "your measurement on 16 GPUs")
    assert choice.cost is not None
    for figure in (choice.days, choice.gpu_hours, choice.cost):
        assert (figure.basis, figure.source) == ("projected", "calculated from your measurement on 16 GPUs")

"""`benchmarks.sample_layouts`: calibrated by equal lengths alone, and a choice of the layout by measured speeds."""

from collections.abc import Mapping
from typing import Any

from benchmarks.sample_layouts import report
from benchmarks.sample_layouts.cases import EQUAL, Case, cases
from benchmarks.sample_layouts.report import Trial
from shardtune.api_schemas.training.padding import padding_of
from shardtune.api_schemas.training.sample_lengths import LAYOUTS
from shardtune.api_schemas.training.sample_plan import Split
from tests.support.service.simulated_worker import measurement


def figures(speeds: Mapping[str, float]) -> dict[str, Any]:
    return report.report([_trial(case, speeds[case.layout]) for case in cases()])


def _trial(case: Case, speed: float) -> Trial:
    plan, split = case.workload.sample_plan, Split(case.config.micro_batch, 2, 16 // case.config.micro_batch)
    padding = None if plan is None else padding_of(plan, split)
    tokens = case.workload.tokens_per_step / 2
    measured = measurement(speed).model_copy(update={"padding": padding, "step_time_s": tokens / speed})
    return Trial(case, (measured,))


def test_every_configuration_runs_with_every_layout() -> None:
    described = {layout: [case.config for case in cases() if case.layout == layout] for layout in (EQUAL, *LAYOUTS)}
    assert all(configs == described[EQUAL] for configs in described.values()) and len(described[EQUAL]) == 7


def test_what_is_scored_is_not_fitted() -> None:
    speeds = {EQUAL: 4000.0, "padded": 1500.0, "grouped": 2500.0, "packed": 3000.0}
    first, second = figures(speeds), figures(speeds | {"padded": 15.0, "grouped": 25.0, "packed": 30.0})
    assert [row["predicted"] for row in first["rows"]] == [row["predicted"] for row in second["rows"]]
    assert first["median_error"] != second["median_error"]


def test_the_choice_is_that_of_the_measured_speeds() -> None:
    speeds = {EQUAL: 4000.0, "padded": 1500.0, "grouped": 2500.0, "packed": 3000.0}
    chosen = figures(speeds)
    assert all(choice["measured"].startswith("packed") for choice in chosen["choices"].values())
    assert {layout: len(hashes) for layout, hashes in chosen["samples"].items()} == dict.fromkeys(LAYOUTS, 1)

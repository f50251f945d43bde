"""Plans of training runs: rows, bands, choices, goodput and what is refused."""

import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import MOST_SAMPLES
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.plans import Goodput, PlanRequest
from shardtune.tuner.plans import plan as plans
from shardtune.tuner.plans.goodput import expected_goodput
from shardtune.tuner.plans.layouts import plan_layouts
from shardtune.tuner.plans.plan import plan
from shardtune.tuner.plans.speeds import speeds_of_kind
from shardtune.tuner.prediction import catalogue, prediction_request
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.shapes.config_shape import from_config

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def request(**values: Any) -> PlanRequest:
    """Request for 300 billion tokens of a Llama-3.1-8B on H100 and H200, changed by `values`."""
    default = {
        "model": "llama-3.1-8b", "tokens": 3e11, "gpus": ["h100", "h200"], "counts": [8, 64, 256],
        "prices": {"h100": 2.0, "h200": 3.0},
    }  # fmt: skip
    return PlanRequest.model_validate(default | values)


def test_each_row_is_consistent_and_has_a_band_for_every_figure() -> None:
    result = plan(request(deadline="2027-03-01", budget=1e5), NOW)
    assert [(row.gpu, row.gpus) for row in result.rows] == [(gpu, n) for gpu in ("h100", "h200") for n in (8, 64, 256)]
    for row in result.rows:
        for band in (row.tokens_per_s_per_gpu, row.hours, row.gpu_hours, row.cost):
            assert band is not None and band.low < band.expected < band.high
        assert row.finish.earliest <= row.finish.expected <= row.finish.latest
        assert row.evidence == "predicted" and 0 < row.goodput < 1
        assert row.gpu_hours.expected == pytest.approx(row.hours.expected * row.gpus)
        tokens = row.tokens_per_s_per_gpu.expected * row.gpu_hours.expected * 3600 * row.goodput
        assert tokens == pytest.approx(3e11, rel=1e-6)


def test_the_planned_configuration_is_legal_and_as_fast_as_predict_says() -> None:
    result = plan(request(counts=[8, 64], global_batch=1024), NOW)
    shape = from_config(preset("llama-3.1-8b").config)
    for row in result.rows:
        cluster = catalogue.parse_cluster(f"{row.gpus // 8}x8x{catalogue.find(row.gpu).name}")
        asked = prediction_request.PredictionRequest(model="llama-3.1-8b", cluster=cluster)
        workload = prediction_request.resolve(asked).workload(row.global_batch)
        prediction = predict(shape, workload, cluster, row.config, limits=False)
        assert prediction.speed is not None
        assert row.tokens_per_s_per_gpu.expected == pytest.approx(prediction.speed.tokens_per_s_per_gpu, rel=1e-6)
        assert row.memory_gib == pytest.approx(prediction.memory.total_gib, rel=1e-6)


def test_the_cheapest_row_meets_the_deadline_and_the_fastest_the_budget() -> None:
    result = plan(request(deadline="2026-12-10", budget=4e4), NOW)
    in_time = [row for row in result.rows if row.meets_deadline in ("surely", "likely")]
    assert result.cheapest_in_time in in_time and 0 < len(in_time) < len(result.rows)
    assert result.cheapest_in_time.cost.expected == min(row.cost.expected for row in in_time)
    assert result.fastest_in_budget is None or result.fastest_in_budget.cost.expected <= 4e4
    rich = plan(request(budget=1e9), NOW).fastest_in_budget
    assert rich is not None and rich.hours.expected == min(row.hours.expected for row in result.rows)
    assert plan(request(deadline="2026-11-26", tokens=3e13), NOW).cheapest_in_time is None


def test_beyond_the_knee_gpu_hours_grow_by_more_than_a_tenth() -> None:
    result = plan(request(counts=[8 << power for power in range(9)], global_batch=2048), NOW)
    for knee in result.knees:
        rows = [row for row in result.rows if row.gpu == knee.gpu]
        least = min(row.gpu_hours.expected for row in rows)
        assert knee.gpu_hours.expected <= 1.1 * least
        assert all(row.gpu_hours.expected > 1.1 * least for row in rows if row.gpus > knee.gpus)


def test_a_model_that_fits_nowhere_is_refused_row_by_row_with_a_remedy() -> None:
    result = plan(request(model="llama-2-70b", gpus=["a100-40gb"], counts=[8], prices={}), NOW)
    assert not result.rows and "use more GPUs, or larger ones" in result.impossible[0].reason
    assert result.cheapest_in_time is None and not result.knees


def test_a_batch_that_the_gpus_do_not_divide_is_rounded_and_reported() -> None:
    (row,) = plan(request(gpus=["h100"], counts=[24], global_batch=1000, prices={}), NOW).rows
    assert row.global_batch % 8 == 0 and 800 <= row.global_batch <= 1250
    few = plan(request(gpus=["h100"], counts=[512], global_batch=8, prices={}), NOW)
    assert "raise global_batch" in few.impossible[0].reason


def test_a_measurement_on_few_gpus_makes_larger_rows_of_its_kind_projected_and_narrower() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=16), micro_batch=2, activation_checkpointing="full")
    measured = {
        "gpu": "H100-SXM5-80GB", "gpus": 16, "config": config.model_dump(), "gradient_accumulation": 4,
        "tokens_per_s_per_gpu": 5000.0, "peak_gib": 30.0,
    }  # fmt: skip
    result = plan(request(measurements=[measured]), NOW)
    rows = {(row.gpu, row.gpus): row for row in result.rows}
    assert [rows["h100", count].evidence for count in (8, 64, 256)] == ["predicted", "projected", "projected"]
    assert rows["h200", 64].evidence == "predicted"
    projected, predicted = rows["h100", 64], rows["h200", 64]
    assert projected.extrapolated_from == (16,)
    assert projected.hours.high / projected.hours.low < predicted.hours.high / predicted.hours.low
    faster = plan(request(measurements=[measured | {"tokens_per_s_per_gpu": 10000.0}]), NOW)
    ratio = faster.rows[1].tokens_per_s_per_gpu.expected / projected.tokens_per_s_per_gpu.expected
    assert ratio == pytest.approx(2.0, rel=0.05)


def test_goodput_falls_with_gpus_and_the_interval_is_young_and_dalys() -> None:
    assumptions = Goodput(overhead=0.0, failures_per_gpu_hour=1e-4, checkpoint_s=60, restart_s=600)
    few, many = expected_goodput(assumptions, 64), expected_goodput(assumptions, 4096)
    assert many.fraction < few.fraction < 1
    assert few.interval_s == pytest.approx((2 * 60 * 3600 / (1e-4 * 64)) ** 0.5)
    best = expected_goodput(assumptions, 1024).fraction
    for interval in (300, 30_000):
        other = assumptions.model_copy(update={"checkpoint_interval_s": interval})
        assert expected_goodput(other, 1024).fraction < best
    assert expected_goodput(Goodput(overhead=0.25, failures_per_gpu_hour=0), 8).fraction == pytest.approx(0.8)


def test_gpus_that_fail_faster_than_they_recover_never_finish() -> None:
    result = plan(request(gpus=["h100"], counts=[256], prices={}, goodput={"failures_per_gpu_hour": 1.0}), NOW)
    assert not result.rows and "failures_per_gpu_hour" in result.impossible[0].reason


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": -3e11}, "tokens"),
        ({"prices": {"h100": 0}}, r"prices.h100 \(0.0\) must be above 0"),
        ({"prices": {"h100": -1}}, "must be above 0"),
        ({"prices": {"b200": 3}}, r"prices \(b200\) names no kind of gpus"),
        ({"counts": [10**7]}, r"counts \(10000000\) must be between 1 and 100000"),
        ({"counts": [12]}, r"counts \(12\) must be a multiple of gpus_per_node \(8\).*try 8"),
        ({"counts": []}, "counts"),
        ({"gpus": []}, "gpus"),
        ({"start": "2027-03-01", "deadline": "2027-02-01"}, r"deadline \(2027-02-01\) must not be before the start"),
        (
            {"prices": {"h100": 2.0, "H-100": 3.0}},
            r"prices.H-100 \(3.0\) is the same kind as h100; give its price once",
        ),
        ({"counts": list(range(8, 8 * 65, 8)), "gpus": ["h100", "h200", "b200", "a100-80gb"]}, "leave some out"),
    ],
)
def test_bad_input_is_refused_with_field_value_and_remedy(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        request(**values)


def test_the_batch_of_the_longest_run_is_one_that_a_workload_may_have() -> None:
    shape = from_config(preset("llama-2-70b").config)
    assert plans.default_batch(shape, 3e11, 4096, 512) < plans.default_batch(shape, 3e13, 4096, 512)
    assert plans.default_batch(shape, 1e16, 8, 512) == 2**19 <= MOST_SAMPLES


@pytest.mark.parametrize(("start", "begins"), [(None, 20), ("2026-11-25", 0), ("2026-11-26", 24)])
def test_a_run_without_a_first_day_ends_its_hours_after_now_and_not_after_midnight(
    start: str | None, begins: int
) -> None:
    evening = NOW + timedelta(hours=20)
    result = plan(request(start=start, deadline="2026-12-10", counts=[8, 64, 256]), evening)
    moment = NOW + timedelta(hours=begins)
    assert result.start == moment.date() and any(f"{moment.date()} at {moment:%H:%M}" in note for note in result.notes)
    for row in result.rows:
        ends = [moment + timedelta(hours=hours) for hours in (row.hours.low, row.hours.expected, row.hours.high)]
        assert [row.finish.earliest, row.finish.expected, row.finish.latest] == [end.date() for end in ends]
        assert (row.meets_deadline in ("surely", "likely")) == (ends[1].date() <= date(2026, 12, 10))


def test_a_deadline_in_the_past_an_unknown_gpu_and_a_budget_without_prices_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"deadline \(2026-11-01\) has passed: today is 2026-11-25"):
        plan(request(deadline="2026-11-01"), NOW)
    with pytest.raises(ValueError, match="is not in the catalogue"):
        plan(request(gpus=["h999"], prices={}), NOW)
    with pytest.raises(ValueError, match=r"gpus \('H100-SXM5-80GB'\) is the same kind as h100"):
        plan(request(gpus=["h100", "H100-SXM5-80GB"], prices={}), NOW)
    with pytest.raises(ValueError, match=r"budget \(100000\) needs prices"):
        plan(request(budget=1e5, prices={}), NOW)


def test_five_kinds_and_twelve_counts_of_a_70b_take_about_a_second() -> None:
    kinds = ["h100", "h200", "mi300x", "a100-80gb", "b200"]
    counts = [8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    asked = request(model="llama-2-70b", gpus=kinds, counts=counts)
    plan(asked, NOW)
    began = time.process_time()
    result = plan(asked, NOW)
    # The CPU time of this process: the machine of the tests is shared.
    assert time.process_time() - began < 3.0
    assert len(result.rows) + len(result.impossible) == 60


def test_measurements_are_predicted_together_as_each_alone() -> None:
    """A hundred of them took eight seconds of a processor one by one."""
    measured = [
        {"gpu": "h100", "gpus": gpus, "config": {"strategy": strategy, "micro_batch": micro_batch},
         "tokens_per_s_per_gpu": 9000.0, "gradient_accumulation": accumulation}
        for gpus, strategy, micro_batch, accumulation in (
            (8, {"kind": "fsdp2", "dp_shard": 8}, 2, 1),
            (64, {"kind": "fsdp2", "dp_shard": 8, "dp_replicate": 8}, 1, 4),
            (16, {"kind": "zero", "stage": 2}, 4, 2),
        )
    ]  # fmt: skip
    asked = request(measurements=measured)
    resolved = plans._resolve(asked, "h100", Objective()).resolved
    layouts = plan_layouts(resolved.shape, (8,), 8, resolved.sequence, 64)
    assert layouts is not None
    together = speeds_of_kind(resolved, layouts, 64, asked.measurements).anchors
    alone = [speeds_of_kind(resolved, layouts, 64, [item]).anchors[0] for item in asked.measurements]
    assert [size.predicted.gpus for size in together] == [8, 64, 16]
    for first, second in zip(together, alone, strict=True):
        assert first.predicted.layout == second.predicted.layout
        assert first.predicted.seconds == pytest.approx(second.predicted.seconds, rel=1e-12)
        assert first.predicted.memory_gib == pytest.approx(second.predicted.memory_gib, rel=1e-12)
        assert first.seconds == pytest.approx(second.seconds, rel=1e-12)

"""Charts are geometry that can be checked without drawing it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtune.api_schemas.studies.study_result import Speedup
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries.trial_points import TrialPoint
from shardtune.service.pages import figures
from shardtune.service.pages.charts.interval import interval
from shardtune.service.pages.charts.over_time import SpeedMeasurement, over_time
from shardtune.service.pages.charts.parallel import parallel
from shardtune.service.pages.charts.scale import LogScale, Scale, for_sizes, tick_label
from shardtune.service.pages.charts.search import best_so_far, pareto_front, speed_against_memory
from shardtune.service.pages.charts.series import step_times
from shardtune.service.pages.charts.stacked_bars import by_kind, stack
from shardtune.service.pages.views.expected_speed import expected
from shardtune.service.wording import disambiguate
from shardtune.service.wording.knob_words import knob_name
from tests.support.values.prediction_tables import predicted_table

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_target_over_time_has_a_mark_for_each_measurement() -> None:
    def then(days: float, speed: float, kind: str, spread=None) -> SpeedMeasurement:
        return SpeedMeasurement(START + timedelta(days=days), speed, spread, "words", f"/studies/{days}", kind)

    actual = [then(0, 100, "own", (90, 110)), then(1, 99, "canary"), then(2, 60, "infeasible"), then(9, 120, "own")]
    plot = over_time(actual)
    assert plot is not None and plot.x_label == "days since it was first measured"
    assert [mark.shape for mark in plot.marks] == ["circle", "diamond", "cross", "circle"]
    assert [mark.x for mark in plot.marks] == sorted(mark.x for mark in plot.marks)
    assert plot.marks[2].y > plot.marks[1].y > plot.marks[3].y and [line.kind for line in plot.lines] == [
        "whisker",
        "own",
    ]
    assert over_time(actual[:1]) is None and over_time([actual[0], then(0.05, 1, "own")]).x_label.startswith("minutes")


def point(number: int, speed: float | None, memory: float | None, **changes) -> TrialPoint:
    values = {
        "number": number,
        "state": TrialState.COMPLETE,
        "origin": "sampler",
        "config": {"strategy": {"kind": "ddp"}},
        "failure_kind": None,
        "failure_message": None,
        "failure_peak_gib": None,
        "tokens_per_s_per_gpu": speed,
        "peak_allocated_gib": memory,
        "peak_reserved_gib": None,
        "device_used_gib": None,
        "step_time_s": 0.1,
        "predicted_memory_gib": None,
        "predicted_tokens_per_s_per_gpu": None,
        "expected_tokens_per_s_per_gpu": None,
        "low_tokens_per_s_per_gpu": None,
        "high_tokens_per_s_per_gpu": None,
        "disturbed": None,
        "gpu_seconds": 10.0,
        "finished_at": START + timedelta(seconds=number),
    }
    return TrialPoint(**(values | changes))


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(2, 9))
def test_ticks_are_few_rising_and_inside(low, span, about):
    ticks = Scale(low, low + span, 0, 400).ticks(about)
    assert 1 <= len(ticks) <= 2 * about + 2
    assert ticks == sorted(ticks)
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)


def test_sizes_that_span_orders_of_magnitude_are_drawn_on_a_log_scale():
    assert isinstance(for_sizes([0.05, 2.0], 0, 100), LogScale)
    alike = for_sizes([1.0, 2.0], 0, 100)
    assert isinstance(alike, Scale) and alike.low == 0
    assert tick_label(20_000, 30_000) == "20k" and tick_label(0.05, 0.05) == "0.05"


def test_the_front_has_nobody_beaten_in_both_and_nobody_infeasible():
    points = [
        point(0, 100, 1.0),
        point(1, 90, 2.0),
        point(2, 150, 3.0),
        point(3, 999, 0.5, state=TrialState.INFEASIBLE),
        point(4, 20, 0.2, state=TrialState.PRUNED),
    ]
    front = pareto_front([(p.peak_allocated_gib, p) for p in points])
    assert [p.number for _, p in front] == [4, 0, 2]
    marks = speed_against_memory(points, 9.0, "/trials", best=0).marks
    assert ["; pruned" in mark.title for mark in marks] == [mark.href == "/trials/4" for mark in marks]


def test_a_trial_over_the_limit_is_a_cross_beyond_it():
    over = point(1, None, None, state=TrialState.INFEASIBLE, failure_kind="over_limit", failure_peak_gib=4.0)
    chart = speed_against_memory([point(0, 100, 1.0), over], 3.0, "/trials", best=0)
    (area,), (_, cross) = chart.areas, chart.marks
    assert cross.shape == "cross" and cross.x > area.x and cross.href == "/trials/1"


def test_best_so_far_only_rises_and_counts_what_failures_cost():
    points = [point(0, 100, 1), point(1, None, None, state=TrialState.FAILED), point(2, 80, 1), point(3, 120, 1)]
    chart = best_so_far(points, "/trials")
    heights = [float(pair.split(",")[1]) for pair in chart.lines[0].points.split()]
    assert heights == sorted(heights, reverse=True) and "40 GPU-seconds" in chart.summary
    assert best_so_far([], "/trials") is None


def test_parallel_axes_are_the_knobs_that_were_varied():
    tables = [{"backend": "ddp", "micro_batch": n, "compile": False} for n in range(1, 16)]
    points = [point(n, 100 + n, 1) for n in range(15)]
    assert parallel(points[:14], tables[:14], "/trials", best=2) is None, "a table shows more than 14 lines"
    chart = parallel(points, tables, "/trials", best=2)
    assert chart is not None and [axis.title for axis in chart.axes] == [("micro batch",), ("tokens/s/GPU",)]
    assert chart.traces[-1].kind == "chosen"


def test_kinds_add_up_to_the_total_and_bars_end_where_they_should():
    table = predicted_table(PredictionRequest(model="llama-3.1-8b", cluster="8xh100", sequence_length=4096))
    for prediction in table.predictions:
        assert sum(by_kind(prediction.memory.terms).values()) == pytest.approx(prediction.memory.total_gib)
    bars = stack(table.predictions, table.cluster.memory_gib).bars
    fits = [prediction.memory.total_gib <= prediction.memory.capacity_gib for prediction in table.predictions]
    assert [bar.parts[-1].x + bar.parts[-1].width <= bar.capacity + 1 for bar in bars] == fits


def test_an_interval_shows_one_and_every_pair():
    chart = interval(Speedup(value=1.5, ci95=(1.2, 1.9), pairs=2, ratios=(1.4, 1.6)))
    assert chart.even < chart.low < chart.value < chart.high and len(chart.pairs) == 2


def test_the_warm_up_ends_before_the_first_window():
    chart = step_times([0.3, 0.2], [0.1, 0.1], 3)
    (area,) = chart.areas
    early, timed = chart.marks[:2], chart.marks[2:]
    assert all(mark.x < area.x + area.width for mark in early) and all(mark.x > area.x + area.width for mark in timed)
    assert step_times([], [], 3) is None


@pytest.mark.parametrize(
    ("shown", "expected_value"),
    [
        (figures.rate(2175.4), "2,175"),
        (figures.rate(0), "0"),
        (figures.memory(0.0852), "87.2 MiB"),
        (figures.memory(0.004), "4.10 MiB"),
        (figures.memory(79.19), "79.2 GiB"),
        (figures.percent(0.125, 1), "12.5 %"),
        (figures.seconds(0.0124), "12.4 ms"),
        (figures.seconds(75), "75 s"),
        (figures.count(8_030_000_000), "8.03 billion"),
        (figures.relative(START, START + timedelta(minutes=5)), "5 min ago"),
        (disambiguate.knob_value("reduce_bucket_size", 500_000_000), "500 M"),
        (knob_name("stage3_prefetch_bucket_size"), "stage 3 prefetch bucket size"),
    ],
)
def test_figures_have_units_and_sensible_digits(shown, expected_value):
    assert shown == expected_value


def foreseen(number: int, speed: float | None, low: float, middle: float, high: float, **changes) -> TrialPoint:
    ends = zip(("low", "expected", "high"), (low, middle, high), strict=True)
    return point(number, speed, 1.0, **{f"{end}_tokens_per_s_per_gpu": value for end, value in ends}, **changes)


def test_what_was_expected_is_drawn_with_its_interval_and_its_coverage():
    trials = [
        foreseen(0, 100.0, 80.0, 95.0, 120.0),
        foreseen(1, 200.0, 100.0, 120.0, 150.0),
        foreseen(2, 150.0, 140.0, 160.0, 170.0),
        foreseen(3, None, 140.0, 160.0, 170.0, state=TrialState.FAILED),
        point(4, 90.0, 1.0),
    ]
    actual_expected = expected(trials, "/trials")
    assert actual_expected is not None and (actual_expected.inside, actual_expected.trials) == (2, 3)
    whiskers = [line for line in actual_expected.plot.lines if line.kind == "whisker"]
    assert len(whiskers) == len(actual_expected.plot.marks) == 3
    assert "expected 120 (100 to 150), measured 200" in actual_expected.plot.marks[1].title
    assert expected(trials[:2], "/trials") is None

"""Predictions corrected part by part in `benchmarks.diagnosis.by_parts`; its records come from real runs."""

from benchmarks.diagnosis import by_parts


def test_a_way_is_judged_by_the_factor_that_it_is_off_either_way():
    example = {"predicted": 2.0, "by_step": 1.25, "by_parts": 1.0, "timed": 1.0, "before": 1.5}
    other = {"predicted": 0.5, "by_step": 0.8, "by_parts": 0.5, "timed": 1.0, "before": 1.5}
    summary = by_parts.summary({"a-1": example, "b-1": other})
    assert (summary["cases"], summary["parts_nearer_than_step"]) == (2, 1)
    assert summary["predicted"]["median"] == 2.0 and summary["by_step"]["median"] == 1.25


def test_cases_without_pairs_are_left_out(tmp_path):
    assert by_parts.predictions(tmp_path) is None

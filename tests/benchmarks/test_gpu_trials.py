"""Predictions of trials that ran on GPUs: what one model's trials teach holds for another model."""

from pathlib import Path

import pytest

from benchmarks.gpu_trials.rows import TESTS, Row, calibrations, errors, read, summary

DATA = Path("benchmarks/data")
SESSIONS = ["h200_trials.jsonl", "h200_trials_second_machine.jsonl", "h200_levers.jsonl"]


@pytest.mark.parametrize("session", SESSIONS)
def test_trials_of_one_model_calibrate_the_predictions_of_another(session: str) -> None:
    figures = summary(errors(read(DATA / session)))
    assert figures["their_median_speed_error_once_calibrated"] < 8
    assert figures["their_median_speed_error_once_calibrated"] < figures["their_median_speed_error"]


def test_adapters_on_a_busy_gpu_are_predicted_without_a_run_of_that_machine() -> None:
    adapted = [row for row in read(DATA / "h200_levers.jsonl") if row.workload.adapter and row.config.backend != "zero"]
    assert len(adapted) == 5
    for error in errors(adapted):
        assert abs(error.speed) < 8 and abs(error.memory) < 8, error


def test_weights_that_the_host_converts_take_their_time() -> None:
    """ZeRO-3 with offloaded parameters was predicted 12 times too fast before."""
    (row,) = [row for row in read(DATA / SESSIONS[0]) if "parameters offloaded" in row.config.describe()]
    (error,) = errors([row])
    assert abs(error.speed) < 40


def test_a_fast_host_s_update_of_offloaded_weights_says_nothing_of_the_device() -> None:
    without = calibrations(row for row in _tests() if not _offloads(row)).speed.factors
    learned = calibrations(_tests()).speed.factors
    assert learned["offload"] < 0.5
    assert learned["matmul"] == pytest.approx(without["matmul"], rel=0.15)


def test_trials_that_wait_for_a_slow_host_do_not_make_the_device_look_slow() -> None:
    waiting = calibrations(row for row in _tests() if not _offloads(row)).speed
    assert waiting.host > 2 and waiting.factors["matmul"] < 1.25


def _tests() -> list[Row]:
    return [row for row in read(DATA / SESSIONS[1]) if row.source == TESTS]


def _offloads(row: Row) -> bool:
    return "offload" in row.config.describe()

"""Predictions of trials that ran on GPUs: what one model's trials teach holds for another model."""

from pathlib import Path

import pytest

from benchmarks.gpu_trials.rows import TESTS, calibrations, errors, read, summary

DATA = Path("benchmarks/data")
SESSIONS = ["h200_trials.jsonl", "h200_trials_second_machine.jsonl"]


@pytest.mark.parametrize("session", SESSIONS)
def test_trials_of_one_model_calibrate_the_predictions_of_another(session: str) -> None:
    figures = summary(errors(read(DATA / session)))
    assert figures["their_median_speed_error_once_calibrated"] < 8 < figures["their_median_speed_error"]


def test_a_fast_host_s_update_of_offloaded_weights_says_nothing_of_the_device() -> None:
    trials = [row for row in read(DATA / SESSIONS[1]) if row.source == TESTS]
    without = calibrations(row for row in trials if "offload" not in row.config.describe()).speed.factors
    learned = calibrations(trials).speed.factors
    assert learned["offload"] < 0.5
    assert learned["matmul"] == pytest.approx(without["matmul"], rel=0.15)

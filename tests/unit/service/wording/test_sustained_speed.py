"""Words about a sustained run: no cause that was not observed, and no remedy for another cause."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import SustainedOutcome, SustainedSpeed
from shardtune.service.wording.answers import sustained_speed
from tests.support.values.synthetic_studies import contender_of

BEST = contender_of(TrialConfig(strategy=DdpConfig()))


def text(**figures: Any) -> str:
    speed = SustainedSpeed(
        trial_number=0, outcome=SustainedOutcome.MEASURED, compared_tokens_per_s_per_gpu=100.0,
        tokens_per_s_per_gpu=90.0, duration_s=120.0, **figures,
    )  # fmt: skip
    result = StudyResult(best=BEST, baseline=BEST, speedup=None, verdict=Verdict.CONFIRMED, sustained=speed)
    (reason,) = sustained_speed.reasons(result)
    return reason.text


@pytest.mark.parametrize(
    ("figures", "has_remedy"),
    [
        ({}, False),
        ({"sm_clock_mhz": 1695.0, "compared_sm_clock_mhz": 1700.0}, False),
        ({"sm_clock_mhz": 1500.0, "compared_sm_clock_mhz": 1700.0}, True),
        ({"throttle_reasons": ("software thermal slowdown",)}, True),
    ],
    ids=["CPU ranks", "same clock", "lower clock", "driver"],
)
def test_cooler_gpus_are_a_remedy_for_lowered_clocks_alone(figures: dict[str, Any], has_remedy: bool) -> None:
    said = text(is_slower=True, lowest_tokens_per_s_per_gpu=98.0, **figures)
    assert said.startswith("a long training is 10.0 % slower than the trials: ")
    assert ("cooler GPUs" in said) == has_remedy


def test_a_disturbed_run_names_no_cause_that_may_not_have_been_observed() -> None:
    said = text(is_disturbed=True, lowest_tokens_per_s_per_gpu=98.0)
    assert said.startswith("the sustained run was disturbed: ") and "other programs" not in said

"""First and last days of a plan: which deadlines a plan takes, and which it rejects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.tuner.plans.plan import plan

EVENING = datetime(2026, 11, 25, 20, tzinfo=UTC)


def request(**values: Any) -> PlanRequest:
    default = {"model": "llama-3.1-8b", "tokens": 3e9, "gpus": ["h100"], "counts": [64]}
    return PlanRequest.model_validate(default | values)


@pytest.mark.parametrize(
    ("days", "hours_left"),
    [
        ({"deadline": "2026-11-25"}, 4),
        ({"deadline": "2026-11-25", "start": "2026-11-25"}, 24),
        ({"deadline": "2026-11-30", "start": "2026-11-30"}, 24),
        ({"deadline": "2026-11-25", "start": "2026-11-24"}, 48),
    ],
)
def test_a_run_may_end_on_the_day_on_which_it_starts(days: dict[str, str], hours_left: int) -> None:
    seen = set()
    for tokens in (1e8, 3e9, 1e10, 3e11):
        (row,) = plan(request(tokens=tokens, **days), EVENING).rows
        assert (row.meets_deadline == "surely") == (row.hours.high <= hours_left)
        assert (row.meets_deadline == "no") == (row.hours.low > hours_left)
        seen.add(row.meets_deadline)
    assert {"surely", "no"} <= seen


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (
            {"deadline": "2026-11-24"},
            r"deadline \(2026-11-24\) has passed: today is 2026-11-25 in UTC; give a later day",
        ),
        ({"deadline": "2026-11-24", "start": "2026-11-01"}, r"deadline \(2026-11-24\) has passed: today is 2026-11-25"),
        ({"deadline": "2026-11-24", "start": "2026-11-24"}, r"deadline \(2026-11-24\) has passed: today is 2026-11-25"),
    ],
)
def test_a_deadline_before_today_is_rejected_whenever_the_run_starts(days: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(request(**days), EVENING)


def test_a_deadline_before_the_start_is_rejected() -> None:
    words = r"deadline \(2026-11-29\) must not be before the start \(2026-11-30\); give a later day"
    with pytest.raises(ValueError, match=words):
        request(deadline="2026-11-29", start="2026-11-30")

"""Times of ticks: the days the clocks change, what is rejected, and what is made up for after downtime."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from pydantic import ValidationError

from shardtune.api_schemas import times
from shardtune.api_schemas.retuning.schedules import ScheduleSpec
from shardtune.service.schedules import catch_up, cron
from shardtune.service.schedules.catch_up import DueTick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(text):
    return datetime.fromisoformat(text + "+00:00")


def spec(**changes):
    return ScheduleSpec.model_validate({"name": "nightly", "trigger": "cron", "cron": "0 3 * * *"} | changes)


@pytest.mark.parametrize(
    ("expression", "zone", "after", "due"),
    [
        # 02:30 does not exist on 29 March 2026 in Berlin: the first moment after the gap.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # Both of these fall into the gap, and are one tick.
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        # 02:30 is twice on 25 October 2026: the first of them, also for who asks in between.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10", ["2026-10-26T01:30", "2026-10-27T01:30"]),
        # `*` goes by elapsed time: no hour is left out, and none comes twice.
        (
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:00",
            ["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-25T02:00"],
        ),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:00", ["2026-03-29T01:00", "2026-03-29T02:00"]),
        # The southern hemisphere, and a zone whose clocks change by half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
    ],
)
def test_ticks_over_the_days_the_clocks_change(expression, zone, after, due):
    actual_islice = islice(cron.ticks(expression, zone, at(after)), len(due))
    assert [tick.isoformat()[:16] for tick in actual_islice] == due


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", "cannot be read: bad minute"),
        ("0 3 * *", "must have five fields"),
        ("0 0 3 * * *", "must have five fields"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("* * * * *", "due every 60 s, but at least 300 s"),
        ("0,2 3 * * 0", "due every 120 s"),
        ("0 9 * FEB MON#6", "bad day-of-week"),
    ],
)
def test_cron_that_cannot_be_run_is_rejected_with_a_remedy(expression, message):
    with pytest.raises(ValueError, match=r"^cron \(") as caught:
        cron.check_expression(expression, "Europe/Berlin", NOON, 300)
    assert expression in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Pacific/Kiritimati"])
def test_a_cron_whose_ticks_lie_beyond_the_last_date_is_checked_by_those_before(zone):
    """29 February on a Sunday: four hundred ticks of it take more than ten thousand years."""
    expression = "0 0 29 2 */7"
    cron.check_expression(expression, zone, NOON, 300)
    ticks = list(cron.ticks(expression, zone, NOON))
    assert 250 < len(ticks) < 400 and 9900 < ticks[-1].year < 9999
    assert cron.next_tick(expression, zone, ticks[-1]) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timezone": "Europe/Berln"}, "did you mean Europe/Berlin"),
        ({"timezone": "../etc/passwd"}, "is not a time zone"),
        ({"windows": ["22-6"]}, "write 22:00-06:00"),
        ({"windows": ["２２:00-06:00"]}, "write 22:00-06:00"),
        ({"windows": ["22:00-06:00\n"]}, "write 22:00-06:00"),
        ({"windows": ["22:00-22:00"]}, "is empty"),
        ({"cron": None}, "is required with trigger cron"),
        ({"trigger": "manual"}, "leave it out"),
        ({"catch_up": "all"}, "needs overlap queue"),
        ({"targets": {"target_keys": ["0" * 32], "model": "gpt2"}}, "leave one of them out"),
    ],
)
def test_wrong_schedules_are_rejected_with_a_remedy(changes, message):
    with pytest.raises(ValidationError, match=message):
        spec(**changes)


HOURS = [NOON - timedelta(hours=hours) for hours in (5, 4, 3, 2, 1)]


@pytest.mark.parametrize(
    ("rule", "due", "expected"),
    [
        ({"catch_up": "none"}, HOURS, [DueTick(HOURS[-1], False, 5)]),
        ({"catch_up": "one"}, HOURS, [DueTick(HOURS[-1], True, 5)]),
        ({"catch_up": "one"}, [*HOURS, NOON], [DueTick(NOON, True, 6)]),
        ({"catch_up": "none"}, [*HOURS, NOON], [DueTick(HOURS[-1], False, 5), DueTick(NOON, True)]),
        (
            {"catch_up": "all", "overlap": "queue", "catch_up_limit": 2},
            [*HOURS, NOON],
            [DueTick(HOURS[2], False, 3), DueTick(HOURS[3], True), DueTick(HOURS[4], True), DueTick(NOON, True)],
        ),
        ({"catch_up": "one", "misfire_grace_s": 7200}, HOURS[3:], [DueTick(HOURS[3], True), DueTick(HOURS[4], True)]),
    ],
)
def test_missed_ticks_are_made_up_for_as_the_schedule_says(rule, due, expected):
    account = catch_up.account_for_ticks(due, NOON, spec(**rule))
    assert account == expected
    assert sum(due_tick.merged_ticks for due_tick in account) == len(due)


def test_windows_and_days_are_those_of_their_zone():
    night = ("22:00-06:00",)
    assert times.is_open(night, "Europe/Berlin", at("2026-01-01T21:30"))
    assert not times.is_open(night, "UTC", at("2026-01-01T21:30"))
    assert times.is_open(("00:00-24:00",), "UTC", NOON) and times.is_open((), "UTC", NOON)
    assert times.midnight("Europe/Berlin", at("2026-03-29T12:00")) == at("2026-03-28T23:00")
    assert times.midnight("Europe/Berlin", at("2026-03-29T22:00")) == at("2026-03-29T22:00")

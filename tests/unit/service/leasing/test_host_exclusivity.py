"""Order of runs on a host that several workers share."""

from datetime import UTC, datetime, timedelta

import pytest

from shardtune.api_schemas.machines.host_partition import HostPartition, HostWait
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.hosts import CoTenant
from shardtune.service.leasing.host_exclusivity import must_wait_for, needs_exclusive_host

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER, LATER = NOON - timedelta(seconds=1), NOON + timedelta(seconds=1)
SEARCH, ALONE = HostWait(since=NOON, is_exclusive=False), HostWait(since=NOON, is_exclusive=True)


def partition(*devices, shared_link_devices=()):
    return HostPartition(host="0c5b1a7e94d2f386", devices=devices, shared_link_devices=shared_link_devices)


def other(theirs, purpose=None, waits=None):
    return CoTenant(theirs, NOON, waits, purpose, None)


def test_devices_of_both_and_links_of_both_meet():
    pair = partition("0", "1", shared_link_devices=("0", "1", "2", "3"))
    assert pair.conflicts_with(partition("1")) and not pair.conflicts_with(partition("2"))
    assert pair.conflicts_with(partition("2", "3", shared_link_devices=("0", "1", "2", "3"))), "under one switch"
    assert not pair.conflicts_with(partition("4", "5", shared_link_devices=("4", "5"))) and not pair.conflicts_with(
        partition("2", "3")
    )


@pytest.mark.parametrize(
    ("expected", "theirs", "purpose", "is_so"),
    [
        (SEARCH, partition("1"), RunPurpose.SEARCH, False),
        (SEARCH, partition("0", "1"), RunPurpose.SEARCH, True),
        (SEARCH, partition("1"), RunPurpose.VALIDATION, True),
        (SEARCH, partition("1"), RunPurpose.TRACE, True),
        (ALONE, partition("1"), RunPurpose.SEARCH, True),
        (ALONE, partition("1"), RunPurpose.MODEL_SUMMARY, True),
    ],
)
def test_what_runs_is_in_the_way_of_what_meets_it_and_of_all_that_decides(expected, theirs, purpose, is_so):
    assert must_wait_for(partition("0"), expected, other(theirs, purpose)) is is_so


@pytest.mark.parametrize(
    ("expected", "waits", "is_so"),
    [
        (SEARCH, HostWait(since=LATER, is_exclusive=True), True),
        (ALONE, HostWait(since=EARLIER, is_exclusive=False), False),
        (ALONE, HostWait(since=EARLIER, is_exclusive=True), True),
        (ALONE, HostWait(since=LATER, is_exclusive=True), False),
        (SEARCH, HostWait(since=EARLIER, is_exclusive=False), True),
        (SEARCH, HostWait(since=LATER, is_exclusive=False), False),
    ],
)
def test_who_decides_comes_first_then_who_has_waited_for_longer(expected, waits, is_so):
    assert must_wait_for(partition("0"), expected, other(partition("0", "1"), waits=waits)) is is_so


def test_who_waits_for_other_devices_is_in_nobody_s_way():
    assert not must_wait_for(
        partition("0"), SEARCH, other(partition("1"), waits=HostWait(since=EARLIER, is_exclusive=False))
    )


def test_searches_guide_rehearsals_time_nothing_and_all_else_decides():
    sharing = [purpose for purpose in RunPurpose if not needs_exclusive_host(purpose, None)]
    assert sharing == ["model_summary", "search", "rehearsal"]
    assert not needs_exclusive_host(RunPurpose.SEARCH, SystemStudy(kind=SystemStudyKind.SEARCH))
    assert needs_exclusive_host(RunPurpose.SEARCH, SystemStudy(kind=SystemStudyKind.CANARY))
    assert needs_exclusive_host(RunPurpose.SEARCH, SystemStudy(kind=SystemStudyKind.CHALLENGE))

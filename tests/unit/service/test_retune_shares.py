"""Shares of the fleet's retuning budget: what a project may use depends on what others are entitled to, not on what they
say that they have used."""

import pytest

from shardtune.service.access.retune_shares import left_of_fleet

LIMIT = 900.0
THREE = ("a", "b", "c")


def left(project_id, day_left=1.0, entitled=THREE, **used):
    return left_of_fleet(LIMIT, used, project_id, entitled, day_left)


def test_a_project_that_is_alone_has_the_whole_budget():
    assert left("a", entitled=()) == LIMIT
    assert left("a", entitled=("a",), a=850.0) == 50.0


def test_the_shares_of_others_are_kept_at_midnight_and_free_evenly_over_the_day():
    assert [left("a", day_left) for day_left in (1.0, 0.5, 0.0)] == [300.0, 600.0, 900.0]
    assert left("a", 0.5, b=300.0) == 900.0 - 300.0 - 150.0


@pytest.mark.parametrize("day_left", [1.0, 0.5, 0.1])
def test_whatever_others_say_that_they_have_used_a_project_keeps_what_is_kept_of_its_share(day_left):
    assert left("a", day_left, b=1e12, c=1e12, a=10.0) == day_left * 300.0 - 10.0


def test_projects_that_keep_to_what_is_left_for_them_use_the_limit_together_and_no_more():
    used = dict.fromkeys(THREE, 0.0)
    for hour in range(25):
        # The greediest first, again and again.
        for project in THREE:
            used[project] += max(0.0, left(project, 1 - hour / 24, **used))
        assert sum(used.values()) <= LIMIT + 1e-6
    assert sum(used.values()) == pytest.approx(LIMIT)


def test_a_project_without_a_share_of_its_own_counts_with_what_it_has_used():
    assert left("a", 0.5, entitled=("a", "b"), gone=100.0) == 900.0 - 225.0 - 100.0

"""Option `--wait-for-quiet`: its default, its limits, and a study that is resumed or interrupted."""

import pytest

from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune.quiet_options import check_wait, with_default_minutes
from tests.unit.service.cli.next_commands.undecided_study import options


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["x.json", "--wait-for-quiet"], ["x.json", "--wait-for-quiet", "30"]),
        (["--wait-for-quiet", "x.json"], ["--wait-for-quiet", "30", "x.json"]),
        (["--wait-for-quiet", "--json"], ["--wait-for-quiet", "30", "--json"]),
        (["--wait-for-quiet", "5", "x.json"], ["--wait-for-quiet", "5", "x.json"]),
        (["--wait-for-quiet=5"], ["--wait-for-quiet=5"]),
        (["--wait-for-quiet", "-3"], ["--wait-for-quiet", "-3"]),
        (["x.json"], ["x.json"]),
    ],
)
def test_the_wait_has_a_default_where_no_number_follows(given: list[str], completed: list[str]) -> None:
    assert with_default_minutes(given) == completed


@pytest.mark.parametrize("minutes", [0, -3, 1e6, float("nan"), float("inf")])
def test_a_wait_that_is_no_time_is_rejected_with_the_remedy(minutes: float) -> None:
    with pytest.raises(InputError, match=r"--wait-for-quiet \(.*\) must be above 0 and at most 10080 minutes"):
        check_wait(minutes, resume=False)


def test_a_resumed_study_keeps_its_own_wait() -> None:
    check_wait(5, resume=False)
    with pytest.raises(InputError, match="--resume exclude each other"):
        check_wait(5, resume=True)


def test_an_interrupted_wait_is_named_again() -> None:
    interrupted = options(add_pairs=3, study=None, wait_for_quiet_min=5).after_interrupt(has_begun=False)
    assert interrupted[1].endswith("shardtune tune --add-pairs 3 --wait-for-quiet 5")

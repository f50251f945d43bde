"""What of Slurm's words can be told without Slurm; its daemons are in tests/lab."""

import pytest

from shardtune.workers.gang.slurm import SlurmHosts, seconds_of


@pytest.mark.parametrize(
    ("left", "seconds"),
    [("00:59", 59), ("02:03:04", 7384), ("1-00:00:01", 86401), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_time_left_is_read_as_squeue_prints_it(left: str, seconds: float | None) -> None:
    assert seconds_of(left) == seconds


def test_outside_a_job_the_message_says_how_to_get_one(tmp_path) -> None:
    with pytest.raises(ValueError, match="sbatch"):
        SlurmHosts(tmp_path, environment={})

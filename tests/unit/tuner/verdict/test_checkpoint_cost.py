"""Cost of a winner's checkpoints for the planned training, and the note about it."""

import pytest

from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.tuner.verdict.winner.checkpoint_cost import findings, saving_fraction
from tests.support.service.simulated_worker import restarted

QUICK = {"write_bytes_per_s": 1e9, "read_bytes_per_s": 2e9}


def measured(**values) -> ResumeMeasurement:
    return ResumeMeasurement.model_validate(restarted().model_dump() | {"ranks": 8, "disk": QUICK} | values)


def test_the_share_is_of_a_training_that_waits_for_each():
    assert saving_fraction(measured(save_s=100.0), 900.0) == pytest.approx(0.1)


def test_nothing_is_said_where_nothing_is_worth_a_change():
    assert findings(measured(save_s=5.0, checkpoint_bytes=4_000_000_000), "fsdp2", 1800.0) == ()
    assert findings(measured(save_s=0.9, checkpoint_bytes=1_000_000), "fsdp2", 1800.0) == (), (
        "mostly what any saving costs"
    )


def test_saving_often_names_the_backends_own_way_beside_training():
    slow = measured(save_s=20.0, checkpoint_bytes=20_000_000_000)
    assert all("3.2% of its time" in findings(slow, backend, 600.0)[0] for backend in ("ddp", "zero"))
    assert "async_save" in findings(slow, "fsdp2", 600.0)[0]
    assert '"decoupled": true' in findings(slow, "zero", 600.0)[0]


def test_a_disk_that_saving_waits_for_is_named_with_its_rate():
    full = measured(save_s=20.0, checkpoint_bytes=20_000_000_000)
    (actual,) = findings(full, "ddp", 600.0)
    assert "most of it for the disk, which takes 1,000 MB/s" in actual and actual.endswith("or to a faster disk")
    costly, _ = findings(measured(save_s=20.0, checkpoint_bytes=2_000_000_000), "ddp", 600.0)
    assert "disk" not in costly


@pytest.mark.parametrize(
    ("writing", "reported"),
    [
        (1, "1 of 8 ranks write: let each rank write its part"),
        (8, "collecting what is saved"),
        (None, "collecting what is saved"),
    ],
)
def test_saving_below_what_the_disk_takes_says_who_writes(writing, reported):
    (actual,) = findings(measured(save_s=10.0, checkpoint_bytes=2_000_000_000, writing_ranks=writing), "zero", 1e6)
    assert "saving reaches 200 MB/s where one process writes 1,000 MB/s" in actual and reported in actual


def test_nothing_is_said_of_a_disk_that_nobody_measured():
    assert findings(measured(save_s=10.0, disk=None), "zero", 1e6) == ()

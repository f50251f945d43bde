"""Findings that `benchmarks.diagnosis.slow_disk` derives from resume checks; the disk itself needs root and a loop
device."""

from benchmarks.diagnosis import slow_disk
from shardtune.api_schemas.trials.rank_reports import DiskRate
from tests.support.service.simulated_worker import restarted

CASE = slow_disk.drawn(100, is_slow=True)


def row(save_s: float, disk_bytes_per_s: float):
    disk = DiskRate(write_bytes_per_s=disk_bytes_per_s, read_bytes_per_s=1e9)
    measured = restarted().model_copy(update={"save_s": save_s, "checkpoint_bytes": 60_000_000, "disk": disk})
    return slow_disk.row_of(CASE, measured)


def test_a_slow_disk_is_named_and_a_fast_one_is_not():
    slow, fast = row(8.0, 8e6), row(0.1, 800e6)
    assert slow["named"] == 0 and "which takes 8 MB/s" in slow["said"][0]
    assert fast["named"] is None and fast["said"] == ()
    answer = slow_disk.summary([slow, fast], [fast, slow])
    assert (answer["planted"][0]["named"], answer["planted"][0]["of"]) == (1, 2)
    assert (answer["healthy"]["false_alarms"], answer["healthy"]["runs"]) == (1, 2)


def test_the_same_seed_is_the_same_case_and_only_planted_ones_are_held_back():
    assert slow_disk.drawn(100, is_slow=True) == CASE
    assert slow_disk.drawn(100, is_slow=False).disk_bytes_per_s == 0
    assert {slow_disk.drawn(seed, is_slow=True).strategy["kind"] for seed in range(5)} == {
        "ddp", "fsdp1", "fsdp2", "zero"
    }  # fmt: skip

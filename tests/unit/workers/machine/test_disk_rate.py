"""Disk rate of one process, and the kernel's count of written bytes."""

from shardtune.workers.rank.measure.disk_rate import disk_rate, written_bytes


def test_a_disks_rate_leaves_no_file_and_what_was_written_is_counted(tmp_path):
    before = written_bytes()
    actual_disk_rate = disk_rate(tmp_path)
    after = written_bytes()
    assert actual_disk_rate.write_bytes_per_s > 0 < actual_disk_rate.read_bytes_per_s and list(tmp_path.iterdir()) == []
    assert before is not None and after is not None and after >= before

"""Device locks on the machine: runs that share a device wait for each other, whatever the service believes."""

import threading

import pytest

from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.workers.machine.device_lock import DevicesBusy
from shardtune.workers.partitions.device_locks import hold_for_run


def partition(*devices):
    return HostPartition(host="0c5b1a7e94d2f386", devices=devices)


def never():
    return False


def is_held(folder, lock_name, *, alone=False):
    """Whether a run could not begin."""
    try:
        with hold_for_run(folder, lock_name, alone, never, patience_s=0):
            return False
    except DevicesBusy:
        return True


def test_runs_on_other_devices_go_side_by_side_and_on_the_same_ones_they_do_not(tmp_path):
    with hold_for_run(tmp_path, partition("0"), False, never) as are_ours:
        assert are_ours
        assert not is_held(tmp_path, partition("1"))
        assert is_held(tmp_path, partition("0", "1"))
    assert not is_held(tmp_path, partition("0", "1"))


def test_a_run_that_is_to_be_alone_waits_for_all_and_keeps_all_waiting(tmp_path):
    with hold_for_run(tmp_path, partition("0"), False, never):
        assert is_held(tmp_path, partition("1"), alone=True)
    with hold_for_run(tmp_path, partition("1"), True, never):
        assert is_held(tmp_path, partition("0"))


def test_a_run_that_is_just_ending_is_waited_for(tmp_path):
    begun, ends = threading.Event(), threading.Event()

    def former():
        with hold_for_run(tmp_path, partition("0"), False, never):
            begun.set()
            ends.wait(30)

    thread = threading.Thread(target=former)
    thread.start()
    begun.wait(30)
    looks = iter(range(100))

    def look():
        if next(looks) == 2:
            ends.set()
        return False

    with hold_for_run(tmp_path, partition("0"), False, look) as are_ours:
        assert are_ours
    thread.join()


def test_who_is_stopped_meanwhile_waits_no_longer(tmp_path):
    with (
        hold_for_run(tmp_path, partition("0"), False, never),
        hold_for_run(tmp_path, partition("0"), False, lambda: True) as are_ours,
    ):
        assert not are_ours


def test_who_is_not_let_in_says_where_to_look(tmp_path):
    with (
        hold_for_run(tmp_path, partition("0"), False, never),
        pytest.raises(DevicesBusy, match=r"0 is still in use.*look at its log"),
        hold_for_run(tmp_path, partition("0"), False, never, patience_s=0),
    ):
        pass

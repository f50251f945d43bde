"""One agent per set of devices, of whichever user; who has a device is named, and nobody is waited for without end."""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import uuid

import pytest
from filelock import FileLock

from shardtune.workers.machine.device_lock import DevicesBusy, hold_locks, launch_tag
from tests.support.processes.other_user import OTHER_UID, acting, place_of_all_users


@pytest.fixture
def gpus():
    """Three GPUs that no other test has: their locks are the machine's."""
    return [f"GPU-{letter}-{uuid.uuid4()}" for letter in "abc"]


def hold(work_dir, uuids, patience_s=0.0):
    with hold_locks(work_dir, uuids, patience_s=patience_s):
        pass


def test_a_second_agent_on_the_same_gpu_is_rejected_with_the_first_one_s_process(tmp_path, gpus):
    first, second, third = gpus
    with (
        hold_locks(tmp_path, [first, second]),
        pytest.raises(DevicesBusy, match=rf"{second} is in use .*process {os.getpid()} of uid {os.geteuid()}\)"),
    ):
        hold(tmp_path, [second, third])
    hold(tmp_path, [second])


def test_an_agent_that_is_rejected_keeps_none_of_its_gpus(tmp_path, gpus):
    first, second, _ = gpus
    with hold_locks(tmp_path, [second]):
        with pytest.raises(DevicesBusy):
            hold(tmp_path, [first, second])
        hold(tmp_path, [first])


def test_a_lock_ends_with_its_process_and_is_waited_for(tmp_path, gpus):
    program = f"""
from pathlib import Path
from shardtune.workers.machine.device_lock import hold_locks
with hold_locks(Path({str(tmp_path)!r}), {gpus[:1]!r}):
    print("held", flush=True)
    input()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DevicesBusy, match=f"process {holder.pid} "):
            hold(tmp_path, gpus)
        threading.Timer(0.2, holder.kill).start()
        hold(tmp_path, gpus, patience_s=30)


def test_children_that_outlive_an_agent_do_not_keep_its_lock(tmp_path, gpus):
    with contextlib.ExitStack() as stack:
        with hold_locks(tmp_path, gpus):
            child = stack.enter_context(subprocess.Popen(["sleep", "60"]))
            stack.callback(child.kill)
        hold(tmp_path, gpus)


@pytest.mark.parametrize("listens", [True, False])
def test_another_user_who_takes_a_gpu_s_lock_is_waited_for_within_bounds_and_named(tmp_path, gpus, listens):
    def take():
        lock = socket.socket(socket.AF_UNIX)
        lock.bind(f"\0shardtune/{gpus[0]}")
        if listens:
            lock.listen()
        return lock

    holder = f"uid {OTHER_UID}, another user" if listens else "its process is unknown: Connection refused; `ss -xlp`"
    with acting(take) as pid:
        with pytest.raises(DevicesBusy, match=holder) as rejected:
            hold(tmp_path, gpus, patience_s=0.3)
        assert not listens or f"process {pid} " in str(rejected.value)
    hold(tmp_path, gpus)


def test_no_file_that_another_user_makes_and_locks_keeps_an_agent_from_a_gpu(tmp_path, gpus, monkeypatch):
    with place_of_all_users() as everybody:
        monkeypatch.setattr("tempfile.tempdir", str(everybody))

        def plant():
            (everybody / "shardtune-locks").mkdir()
            lock = (everybody / "shardtune-locks" / f"{gpus[0]}.lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            return lock

        with acting(plant):
            hold(tmp_path, gpus)


def test_cpu_agents_need_work_directories_of_their_own(tmp_path):
    with hold_locks(tmp_path / "one", []):
        with pytest.raises(DevicesBusy, match="work_dir"):
            hold(tmp_path / "one", [])
        hold(tmp_path / "two", [])


def test_a_former_holder_of_a_work_directory_is_waited_for(tmp_path):
    former = FileLock(tmp_path / "agent.lock", thread_local=False)
    former.acquire()
    ends = threading.Timer(0.2, former.release)
    ends.start()
    with hold_locks(tmp_path, [], patience_s=30):
        assert not former.is_locked


def test_the_mark_is_the_device_sets_whatever_the_order(tmp_path):
    assert launch_tag(tmp_path, ["GPU-a", "GPU-b"]) == launch_tag(tmp_path / "x", ["GPU-b", "GPU-a"])
    assert launch_tag(tmp_path, []) != launch_tag(tmp_path / "x", [])

"""Lock files of torch's extension cache: a killed build's is removed, a live one's is left."""

import os
import time
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from shardtune.workers.launch import Launch
from shardtune.workers.launchers import extension_locks
from shardtune.workers.launchers.extension_locks import remove_stale
from shardtune.workers.launchers.local import LocalLauncher
from tests.support.processes import preloaded_forks
from tests.support.processes.stack import until
from tests.support.workers.worker_fakes import FAKE_HOST


def hold(lock: Path) -> None:
    """Hold the lock as a build does, until this process is killed; to be called in a fork."""
    assert FileBaton(str(lock)).try_acquire()
    print("held", flush=True)
    time.sleep(600)


def test_the_lock_of_a_killed_build_is_removed_and_that_of_a_live_one_is_left(tmp_path: Path) -> None:
    for name in ("deepspeed_shm_comm", "other", "without"):
        (tmp_path / name).mkdir()
    (tmp_path / "other/notes").touch()
    lock, environment = tmp_path / "deepspeed_shm_comm/lock", {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    holder = preloaded_forks.fork(hold, lock, output=tmp_path / "printed")
    try:
        until(lambda: (tmp_path / "printed").exists() and "held" in (tmp_path / "printed").read_text(), 120, "a lock")
        assert remove_stale(environment) == [] and lock.exists()
    finally:
        holder.kill()
        holder.join()
    assert lock.exists(), "torch leaves it"
    assert remove_stale(environment) == [lock] and not lock.exists()
    began_s = time.monotonic()
    FileBaton(str(lock)).wait()
    assert time.monotonic() - began_s < 1
    assert (tmp_path / "other/notes").exists()


def test_locks_are_found_where_torch_puts_its_extensions(tmp_path: Path) -> None:
    lock = tmp_path / ".cache/torch_extensions/py311_cpu/deepspeed_shm_comm/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert remove_stale({"TORCH_EXTENSIONS_DIR": str(tmp_path / "nothing"), "HOME": str(tmp_path)}) == []
    assert remove_stale({"HOME": str(tmp_path)}) == [lock]
    lock.touch()
    assert remove_stale({"HOME": "/", "XDG_CACHE_HOME": str(tmp_path / ".cache")}) == [lock]


def test_a_lock_that_another_host_may_hold_is_left_until_it_is_older_than_any_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension_locks, "_LOCAL_FILE_SYSTEMS", frozenset())
    lock, environment = tmp_path / "deepspeed_shm_comm/lock", {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    lock.parent.mkdir()
    lock.touch()
    assert remove_stale(environment) == [] and lock.exists()
    left_s = time.time() - 3600
    os.utime(lock, (left_s, left_s))
    assert remove_stale(environment) == [lock]


@pytest.mark.parametrize("cold", [False, True], ids=["forked", "cold"])
def test_ranks_start_without_the_locks_of_earlier_ones(tmp_path: Path, mark: str, cold: bool) -> None:
    lock = tmp_path / "cache/deepspeed_shm_comm/lock"
    lock.parent.mkdir(parents=True)
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "FAKE_ACTS": '["complete"]'}
    launcher = LocalLauncher(environment, mark, tmp_path / "log", 30, cold, commands=(FAKE_HOST, FAKE_HOST))
    launcher.prepare(lambda: False)
    lock.touch()
    launcher.launch(tmp_path, Launch.of(1))
    launcher.kill()
    launcher.close()
    assert not lock.exists()

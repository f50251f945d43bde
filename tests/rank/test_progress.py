"""Progress notes of a rank during long phases, and the arithmetic of its figures."""

import time
from pathlib import Path

import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.rank import device, main, trial_dir
from shardtune.workers.rank.measure import speed_check
from shardtune.workers.rank.training import wrap
from tests.support.ranks.tiny_tasks import tiny_task


class _HasJoined(Exception):
    pass


def test_a_long_build_or_compilation_is_no_standstill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    progress = trial_dir.ProgressFile(tmp_path, rank=0)
    stamps = set()
    with progress.refreshed(Progress(phase="building")):
        while len(stamps) < 3:
            stamps.add((tmp_path / "progress.json").stat().st_mtime_ns)
            time.sleep(0.005)
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()).phase == "building"


def test_ranks_that_wait_for_their_peers_do_not_stand_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang whose hosts took more than a minute to meet was ended for lack of progress."""
    stamps = set()

    def join_late(*_: object) -> None:
        until_s = time.monotonic() + 10
        while len(stamps) < 3:
            assert time.monotonic() < until_s, "no progress while the ranks meet"
            stamps.add((tmp_path / "progress.json").stat().st_mtime_ns)
            time.sleep(0.005)
        raise _HasJoined

    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    monkeypatch.setattr("shardtune.workers.rank.process.environment.apply", lambda *_: None)
    monkeypatch.setattr("shardtune.workers.rank.mesh.join", join_late)
    attempt = main.RankAttempt(tmp_path, 0, wrap.make_trainer, device.of_kind)
    with pytest.raises(_HasJoined):
        attempt.run(tiny_task({"kind": "ddp"}, ranks=1))
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()).phase == "starting"


def test_the_device_s_peak_is_what_it_was_before_the_allocator_gave_memory_back() -> None:
    assert device.device_peak_gib(used=7 * GIB, reserved=4 * GIB, most_reserved=9 * GIB) == 12
    assert device.device_peak_gib(used=7 * GIB, reserved=4 * GIB, most_reserved=4 * GIB) == 7


def test_the_pace_of_a_device_is_that_of_clocks_that_are_up() -> None:
    rising = iter([4.0, 4.0, 4.0, 3.0, 3.0, 2.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    assert speed_check.fastest(lambda: next(rising), least_s=20.0) == 2.0
    assert speed_check.fastest(lambda: next(rising), least_s=0.0) == 1.0

"""Progress notes of a rank during long phases, and the arithmetic of its figures."""

import contextlib
import gc
import importlib
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.rank import __main__ as cold_rank
from shardtune.workers.rank import device, main, trial_dir
from shardtune.workers.rank.measure import speed_check
from shardtune.workers.rank.training import wrap
from tests.support.ranks.tiny_tasks import tiny_task


class _NotedInTime(Exception):
    pass


def end_after_notes(folder: Path) -> NoReturn:
    """Take as long as three notes of progress do, then end what follows."""
    stamps, until_s = set[int](), time.monotonic() + 10
    while len(stamps) < 3:
        assert time.monotonic() < until_s, "no note of progress"
        with contextlib.suppress(FileNotFoundError):
            stamps.add((folder / "progress.json").stat().st_mtime_ns)
        time.sleep(0.005)
    raise _NotedInTime


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
    monkeypatch.setattr("shardtune.workers.rank.process.environment.apply", lambda *_: None)
    monkeypatch.setattr("shardtune.workers.rank.mesh.join", lambda *_: end_after_notes(tmp_path))
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    attempt = main.RankAttempt(tmp_path, 0, wrap.make_trainer, device.of_kind)
    with pytest.raises(_NotedInTime):
        attempt.run(tiny_task({"kind": "ddp"}, ranks=1))
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()).phase == "starting"


def test_a_cold_rank_does_not_stand_still_while_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server has ten minutes for the same imports."""
    monkeypatch.setattr(sys, "argv", ["rank", str(tmp_path)])
    monkeypatch.setattr("shardtune.workers.rank.process.parent_death.tie_to_parent", lambda: None)
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    monkeypatch.setattr(importlib, "import_module", lambda _: end_after_notes(tmp_path))
    try:
        with pytest.raises(_NotedInTime):
            cold_rank.main()
    finally:
        gc.enable()


def test_the_device_s_peak_is_what_it_was_before_the_allocator_gave_memory_back() -> None:
    assert device.device_peak_gib(used=7 * GIB, reserved=4 * GIB, most_reserved=9 * GIB) == 12
    assert device.device_peak_gib(used=7 * GIB, reserved=4 * GIB, most_reserved=4 * GIB) == 7


def test_the_pace_of_a_device_is_that_of_clocks_that_are_up() -> None:
    rising = iter([4.0, 4.0, 4.0, 3.0, 3.0, 2.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    assert speed_check.fastest(lambda: next(rising), least_s=20.0) == 2.0
    assert speed_check.fastest(lambda: next(rising), least_s=0.0) == 1.0

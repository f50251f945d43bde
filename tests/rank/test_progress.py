"""Progress notes of a rank during long phases, and the arithmetic of its figures."""

import errno
import gc
import importlib
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.leases import ModelSummaryTask
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.rank import __main__ as cold_rank
from shardtune.workers.rank import device, main, trial_dir
from shardtune.workers.rank.measure import speed_check
from shardtune.workers.rank.process import activity, cpu_time
from shardtune.workers.rank.training import user_script, wrap
from tests.support.ranks.progress_notes import NotedInTime, end_after_notes
from tests.support.ranks.tiny_tasks import tiny_task


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
    with pytest.raises(NotedInTime):
        attempt.run(tiny_task({"kind": "ddp"}, ranks=1))
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()).phase == "starting"


def test_a_cold_rank_does_not_stand_still_while_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server has ten minutes for the same imports."""
    monkeypatch.setattr(sys, "argv", ["rank", str(tmp_path)])
    monkeypatch.setattr("shardtune.workers.rank.process.parent_death.tie_to_parent", lambda: None)
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    monkeypatch.setattr(importlib, "import_module", lambda _: end_after_notes(tmp_path))
    try:
        with pytest.raises(NotedInTime):
            cold_rank.main()
    finally:
        gc.enable()


LOADING = """
import os, time
notes, until_s = set(), time.monotonic() + 20
while len(notes) < 4:
    assert time.monotonic() < until_s, "no note of progress"
    notes.add(os.stat({file!r}).st_mtime_ns)
raise RuntimeError("noted")
"""
HANGING = """
import os, time
time.sleep(1.0)
before = os.stat({file!r}).st_mtime_ns
time.sleep(1.0)
raise RuntimeError("silent" if os.stat({file!r}).st_mtime_ns == before else "noted")
"""


def count_only_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the work of servers that other tests keep below pytest's process."""
    script_clock = time.pthread_getcpuclockid(threading.get_ident())
    # What takes the reading subtracts its own thread's time.
    monkeypatch.setattr(cpu_time, "spent_s", lambda: time.clock_gettime(script_clock) + time.thread_time())
    monkeypatch.setattr(activity, "_IO", Path("missing"))


@pytest.mark.parametrize(("script", "says"), [(LOADING, "noted"), (HANGING, "silent")])
def test_a_script_makes_progress_before_its_first_report_as_long_as_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    """A script that loaded its weights for more than a minute was ended for lack of progress."""
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.1)
    count_only_the_script(monkeypatch)
    monkeypatch.setattr("shardtune.workers.rank.mesh.use_loopback", lambda *_: None)
    # The trial would stay the one of this process.
    monkeypatch.setattr("shardtune.workers.adapter.hand_in", lambda _: None)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    path = tmp_path / "script.py"
    path.write_text(script.format(file=str(tmp_path / "progress.json")))
    (tmp_path / "script.json").write_text(json.dumps({"path": str(path), "arguments": []}))
    workload = tiny_task({"kind": "ddp"}, ranks=1).workload
    task = ModelSummaryTask(model=ModelSpec(name="own", script="own"), workload=workload)
    with pytest.raises(RuntimeError, match=says):
        user_script.run_profile(task, tmp_path, trial_dir.ProgressFile(tmp_path, rank=0))


def test_work_of_another_rank_is_progress_once_rank_0_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    calls: list[int] = []

    def has_worked() -> bool:
        calls.append(1)
        return True

    written = Progress(phase="building")
    other = trial_dir.ProgressFile(tmp_path, rank=1)
    with other.refreshed_by_work(Progress(phase="finishing"), has_worked):
        while len(calls) < 3:
            time.sleep(0.005)
        assert not (tmp_path / "progress.json").exists()
        trial_dir.ProgressFile(tmp_path, rank=0).write(written)
        stamps = set()
        while len(stamps) < 3:
            stamps.add((tmp_path / "progress.json").stat().st_mtime_ns)
            time.sleep(0.005)
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()) == written


def test_progress_goes_on_after_a_moment_in_which_no_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work is read from files of all processes, which fails where a script has as many files open as it may."""
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    calls: list[int] = []

    def has_worked() -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return True

    with trial_dir.ProgressFile(tmp_path, rank=0).refreshed_by_work(Progress(phase="building"), has_worked):
        until_s = time.monotonic() + 20
        while len(calls) < 3 and time.monotonic() < until_s:
            time.sleep(0.005)
    assert len(calls) >= 3


def test_the_user_s_own_model_may_take_long_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the trace of its step was known to take longer than a run may go without progress."""
    monkeypatch.setattr("shardtune.workers.rank.training.model_summary.of", lambda *_: end_after_notes(tmp_path))
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    task = tiny_task({"kind": "ddp"}, ranks=1)
    attempt = main.RankAttempt(tmp_path, 0, wrap.make_trainer, device.of_kind)
    with pytest.raises(NotedInTime):
        attempt.write_model_summary(ModelSummaryTask(model=task.model, workload=task.workload))


def test_the_device_s_peak_is_what_it_was_before_the_allocator_gave_memory_back() -> None:
    assert device.device_peak_gib(used=7 * GIB, reserved=4 * GIB, most_reserved=9 * GIB) == 12
    assert device.device_peak_gib(used=7 * GIB, reserved=4 * GIB, most_reserved=4 * GIB) == 7


def test_the_pace_of_a_device_is_that_of_clocks_that_are_up() -> None:
    rising = iter([4.0, 4.0, 4.0, 3.0, 3.0, 2.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    assert speed_check.fastest(lambda: next(rising), least_s=20.0) == 2.0
    assert speed_check.fastest(lambda: next(rising), least_s=0.0) == 1.0

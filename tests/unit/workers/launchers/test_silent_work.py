"""Ranks that work while a call keeps Python's interpreter lock make progress, though no thread of theirs can say so."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardtune.workers.launch import Launch
from shardtune.workers.launchers import silent_work
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.launchers.silent_work import SilentWork
from shardtune.workers.trial_dir import TrialDir
from tests.support.workers.worker_fakes import FAKE_HOST

RANK = """
import pathlib, sys, time
phase, act, folder = sys.argv[1:4]
note = pathlib.Path(folder) / "note"
note.write_text('{"phase": "' + phase + '"}')
note.rename(pathlib.Path(folder) / "progress.json")
sum(range(10 ** 11)) if act == "hold" else time.sleep(60)
"""
"""Rank whose only thread either computes in one call, which never gives the interpreter lock away, or waits."""

Launched = Callable[[str, str], LocalLauncher]


@pytest.fixture
def launched(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    """Launches one rank in a phase and with an act; the rank is ended with the test."""
    monkeypatch.setattr(silent_work, "_SILENT_S", 0.3)
    monkeypatch.setattr(silent_work, "_PERIOD_S", 0.2)
    launchers: list[LocalLauncher] = []

    def launch(phase: str, act: str) -> LocalLauncher:
        rank = (sys.executable, "-S", "-c", RANK, phase, act)
        launchers.append(LocalLauncher(os.environ, mark, tmp_path / "log", 30, cold=True, commands=(FAKE_HOST, rank)))
        launchers[-1].launch(tmp_path, Launch.of(1))
        return launchers[-1]

    yield launch
    for launcher in launchers:
        launcher.close()


def renewals(launcher: LocalLauncher, folder: Path, within_s: float) -> int:
    """Number of times that the progress file was renewed, until the second one."""
    stamps, until_s = set[int | None](), time.monotonic() + 20
    while not (stamps := {TrialDir(folder).progress_stamp()} - {None}):
        assert time.monotonic() < until_s, "the rank did not start"
        launcher.wait(0.05)
    until_s = time.monotonic() + within_s
    while len(stamps) < 3 and time.monotonic() < until_s:
        launcher.wait(0.05)
        stamps.add(TrialDir(folder).progress_stamp())
    return len(stamps) - 1


@pytest.mark.parametrize("phase", ["building", "finishing"])
def test_a_call_that_keeps_the_interpreter_lock_while_loading_is_progress(
    launched: Launched, tmp_path: Path, phase: str
) -> None:
    """A script that read gigabytes by `json.loads` for more than a minute was ended for lack of progress."""
    assert renewals(launched(phase, "hold"), tmp_path, within_s=20) == 2
    assert TrialDir(tmp_path).progress() is not None


@pytest.mark.parametrize(("phase", "act"), [("building", "wait"), ("warming_up", "hold"), ("training", "hold")])
def test_a_rank_that_waits_or_trains_must_report_itself(
    launched: Launched, tmp_path: Path, phase: str, act: str
) -> None:
    assert renewals(launched(phase, act), tmp_path, within_s=2.5) == 0


def test_reading_mapped_files_from_a_slow_disk_is_work_though_it_costs_no_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_work, "_SILENT_S", 0.0)
    monkeypatch.setattr(silent_work, "_PERIOD_S", 0.0)
    monkeypatch.setattr(silent_work, "tagged_processes", lambda _: {7})
    monkeypatch.setattr(silent_work, "_cpu_s", lambda _: 1.0)
    read = iter([5e6, 5e6, 900e6])
    monkeypatch.setattr(silent_work, "_bytes_read", lambda _: next(read))
    (tmp_path / "progress.json").write_text('{"phase": "building"}')
    work, directory = SilentWork("tag"), TrialDir(tmp_path)
    stamps = []
    for _ in range(4):
        work.renew_progress(directory)
        stamps.append(directory.progress_stamp())
        time.sleep(0.02)
    assert stamps[0] == stamps[1] == stamps[2] != stamps[3]


def test_the_meters_of_many_idle_ranks_are_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's own meter reads a file of every process of the host. On a host with thousands of them, the meters of
    8 ranks passed for work, and a script that hung lived to its deadline."""
    monkeypatch.setattr(silent_work, "_SILENT_S", 0.0)
    monkeypatch.setattr(silent_work, "_PERIOD_S", 0.0)
    monkeypatch.setattr(silent_work, "now_s", itertools.count(0.0, 5.0).__next__)
    monkeypatch.setattr(silent_work, "tagged_processes", lambda _: set(range(8)))
    seconds, read = itertools.count(), itertools.count()
    # 8 looks at 8 processes: each adds 0.3 s and 3.5 MB in the 10 s between two readings of this clock.
    monkeypatch.setattr(silent_work, "_cpu_s", lambda _: 0.3 * (next(seconds) // 8))
    monkeypatch.setattr(silent_work, "_bytes_read", lambda _: 3.5e6 * (next(read) // 8))
    (tmp_path / "progress.json").write_text('{"phase": "building"}')
    work, directory = SilentWork("tag"), TrialDir(tmp_path)
    stamp = directory.progress_stamp()
    for _ in range(8):
        work.renew_progress(directory)
        time.sleep(0.01)
        assert directory.progress_stamp() == stamp

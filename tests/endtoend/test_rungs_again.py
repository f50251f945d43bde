"""`tune --rungs` as its user runs it, killed twice and given again."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.long_run import WIDE
from tests.support.processes.stack import study, until

pytestmark = pytest.mark.ranks

COMMAND = ("tune", "study.json", "--ranks", "2", "--rungs", "1", "--target", "4x2", "--json")
QUICK = {"parity_steps": 3, "max_warmup_steps": 2, "window_steps": 2, "min_windows": 3, "max_windows": 3}
QUICK |= {"min_measure_s": 0}
"""Plan of short runs; a user's are longer."""


def environment() -> dict[str, str]:
    return os.environ | {"SHARDTUNE_MEASURE": json.dumps(QUICK)}


def shardtune(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shardtune", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=280)


def kill_after(folder: Path, words: str, number: int) -> str:
    """Give the command, kill it once its progress says the words, and return its progress."""
    log = folder / f"progress-{number}.txt"
    with log.open("w") as progress:
        command = subprocess.Popen(
            [sys.executable, "-m", "shardtune", *COMMAND],
            cwd=folder,
            env=environment(),
            stderr=progress,
            stdout=progress,
        )
    until(lambda: words in log.read_text() or command.poll() is not None, 180, words)
    assert command.poll() is None, log.read_text()
    below = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    command.wait()
    psutil.wait_procs(below, timeout=30)
    return log.read_text()


@WIDE
def test_rungs_that_were_killed_go_on_with_the_same_command(tmp_path: Path) -> None:
    request = study()
    budget = {"max_trials": 2, "max_pairs": 7, "repeat_disturbed": 0, "resume_check": False, "skip_rehearsal": True}
    (tmp_path / "study.json").write_text(json.dumps(request | {"budget": budget}))
    first = kill_after(tmp_path, "trial 0 ", 1)
    assert "rung 1 of 1: 1 rank" in first and "s × ranks" not in first
    second = kill_after(tmp_path, "on 2 CPU ranks", 2)
    assert "on 1 rank is unfinished and goes on" in second and "s × ranks in study" in second
    done = shardtune(*COMMAND, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "measured the same on 1 rank and is used again" in done.stderr
    assert "on 2 ranks is unfinished and goes on" in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["projection"]["rung_test"]["from_gpus"] == [1]
    with closing(sqlite3.connect(tmp_path / ".shardtune/shardtune.sqlite3")) as database:
        rows = database.execute("SELECT state FROM studies").fetchall()
    assert rows == [("complete",), ("complete",)]
    assert (tmp_path / "best/rungs/1/config.json").is_file() and (tmp_path / "best/target/config.json").is_file()

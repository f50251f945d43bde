"""Processes of an exported `ray_job.py`: a node's command ends with its task, however the task ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.values.launcher_exports import exported

# Stands in for Ray: a task is its function, called in this process.
_RAY = "def remote(**_): return lambda function: function\n"
_MODULE = "class placement_group: pass\nclass PlacementGroupSchedulingStrategy: pass\n"
# Tests that run in the background of a shell pass an ignored SIGINT on.
_TASK = """
import signal, sys, ray_job
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(ray_job.launch(0, "127.0.0.1", sys.argv[1:]))
"""
_RANKS = 'sleep "$1" & sleep "$1" & echo started > started; '


@pytest.fixture
def task(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    seconds = f"600.{os.getpid()}"
    process = started(tmp_path, _RANKS + "wait", seconds)
    yield process
    process.kill()
    process.wait()
    for sleeper in sleepers():
        sleeper.kill()


def started(folder: Path, script: str, seconds: str) -> "subprocess.Popen[bytes]":
    (folder / "ray_job.py").write_text(exported("ray").files["ray_job.py"])
    (folder / "launch.sh").write_text(script)
    for name, text in (
        ("", _RAY),
        ("util", ""),
        ("util/placement_group", _MODULE),
        ("util/scheduling_strategies", _MODULE),
    ):
        module = folder / "ray" / name
        module.mkdir(parents=True, exist_ok=True)
        (module / "__init__.py").write_text(text)
    return subprocess.Popen([sys.executable, "-c", _TASK, seconds], cwd=folder, env={**os.environ, "PYTHONPATH": ""})


def sleepers() -> list[psutil.Process]:
    command = ["sleep", f"600.{os.getpid()}"]
    return [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == command]


def until(condition: object, seconds: float = 20.0) -> bool:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        if callable(condition) and condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_task_that_is_cancelled_or_killed_takes_its_ranks_along(
    number: signal.Signals, task: "subprocess.Popen[bytes]"
) -> None:
    assert until(lambda: len(sleepers()) == 2)
    task.send_signal(number)
    task.wait(20)
    assert until(lambda: not sleepers()), "ranks outlived their task"


def test_a_command_that_ends_leaves_nothing_and_gives_its_code(tmp_path: Path) -> None:
    assert started(tmp_path, _RANKS + "exit 7", f"600.{os.getpid()}").wait(30) == 7
    assert until(lambda: not sleepers())

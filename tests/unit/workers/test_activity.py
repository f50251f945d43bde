"""Work of a rank that reports nothing: processor time and data, not the passing of time."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardtune.workers.rank.process import activity
from shardtune.workers.rank.process.activity import ActivityMeter

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
THEN_WAIT = "import sys; print(flush=True); sys.stdin.read()\n"


def burn() -> None:
    while time.thread_time() < 0.1:
        pass


def idle_meter() -> ActivityMeter:
    meter = ActivityMeter()
    assert meter.has_worked(), "of the first call nothing is known"
    time.sleep(0.5)
    assert not meter.has_worked(), "time alone is no work"
    return meter


def test_other_threads_of_the_process_work() -> None:
    meter = idle_meter()
    worker = threading.Thread(target=burn)
    worker.start()
    worker.join()
    assert meter.has_worked()
    time.sleep(0.5)
    assert not meter.has_worked()


def test_processes_below_it_work_for_it() -> None:
    meter = idle_meter()
    with subprocess.Popen(
        [sys.executable, "-c", BURN + THEN_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        assert meter.has_worked()
        child.stdin.close()


def test_data_from_a_slow_disk_is_work_although_it_costs_no_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "io"
    counters.write_text("rchar: 5000000\nwchar: 0\nread_bytes: 1000\n")
    monkeypatch.setattr(activity, "_IO", counters)
    meter = idle_meter()
    counters.write_text("rchar: 5000000\nwchar: 0\nread_bytes: 9001000\n")
    time.sleep(0.5)
    assert meter.has_worked()


def test_a_kernel_that_counts_no_bytes_is_asked_for_processor_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_IO", tmp_path / "missing")
    idle_meter()

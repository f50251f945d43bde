"""Work of a rank that reports nothing: processor time and data, not the passing of time.

Each case runs in a process of its own: servers that other tests keep below pytest's process would work for it.
"""

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

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


def in_a_fresh_process(case: Callable[..., None], *arguments: Any) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(case, *arguments).result(60)


def other_thread() -> None:
    meter = idle_meter()
    worker = threading.Thread(target=burn)
    worker.start()
    worker.join()
    assert meter.has_worked()
    time.sleep(0.5)
    assert not meter.has_worked()


def test_other_threads_of_the_process_work() -> None:
    in_a_fresh_process(other_thread)


def process_below() -> None:
    meter = idle_meter()
    with subprocess.Popen(
        [sys.executable, "-c", BURN + THEN_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        assert meter.has_worked()
        child.stdin.close()


def test_processes_below_it_work_for_it() -> None:
    in_a_fresh_process(process_below)


def slow_disk(counters: Path) -> None:
    counters.write_text("rchar: 5000000\nwchar: 0\nread_bytes: 1000\n")
    activity._IO = counters
    meter = idle_meter()
    counters.write_text("rchar: 5000000\nwchar: 0\nread_bytes: 9001000\n")
    time.sleep(0.5)
    assert meter.has_worked()


def test_data_from_a_slow_disk_is_work_although_it_costs_no_processor(tmp_path: Path) -> None:
    in_a_fresh_process(slow_disk, tmp_path / "io")


def no_counters(missing: Path) -> None:
    activity._IO = missing
    idle_meter()


def test_a_kernel_that_counts_no_bytes_is_asked_for_processor_time_alone(tmp_path: Path) -> None:
    in_a_fresh_process(no_counters, tmp_path / "missing")

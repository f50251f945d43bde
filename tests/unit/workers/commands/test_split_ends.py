"""End of the workers that divide a machine: without an idle limit a failure ends all, with one each ends alone."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from shardtune.workers.commands import split
from shardtune.workers.interrupt import Interrupt

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that runs Python code in place of a worker."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> "subprocess.Popen[bytes]":
        processes.append(subprocess.Popen([sys.executable, "-S", "-c", code]))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_idle_workers_end_one_by_one(start: Start) -> None:
    workers = {"a": start(""), "b": start("import time; time.sleep(1.5)")}
    assert split._watch(workers, Interrupt(), may_end=True) == 0
    assert [worker.poll() for worker in workers.values()] == [0, 0]


def test_a_worker_that_the_service_left_alone_ends_no_other_that_may_hold_a_result(start: Start) -> None:
    workers = {"a": start(""), "b": start("import sys; sys.exit(1)"), "c": start("import time; time.sleep(1.5)")}
    assert split._watch(workers, Interrupt(), may_end=True) == 1
    assert workers["c"].poll() == 0


def test_without_an_idle_limit_a_worker_that_fails_ends_the_command(start: Start) -> None:
    workers = {"b": start("import sys; sys.exit(2)"), "c": start("import time; time.sleep(600)")}
    assert split._watch(workers, Interrupt(), may_end=False) == 2
    assert workers["c"].poll() is None, "the command's end stops it"


def test_without_an_idle_limit_no_worker_may_end(start: Start) -> None:
    workers = {"a": start(""), "b": start("import time; time.sleep(600)")}
    assert split._watch(workers, Interrupt(), may_end=False) == 1

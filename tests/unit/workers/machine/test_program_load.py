"""Programs are named by their short names, without what ended, and without anything that a name may hide."""

import os
import subprocess
import sys

import psutil

from shardtune.api_schemas.machines.conditions import OWN_PROCESSES
from shardtune.workers.machine.host_load import ProcessTimes, _printable, own_processes
from tests.support.processes.stack import until

CORES = os.sched_getaffinity(0)


def named(programs):
    return [(program.name, program.cores) for program in programs]


def test_programs_are_sorted_by_their_cores_and_processes_of_one_name_are_one_program():
    before = ProcessTimes(0.0, {(10**9, 1.0): ("cc1plus", 5.0), (10**9 + 1, 1.0): ("chrome", 2.0)})
    after = ProcessTimes(
        10.0,
        {
            (10**9, 1.0): ("cc1plus", 9.0),
            (10**9 + 1, 1.0): ("chrome", 11.0),
            (10**9 + 2, 1.0): ("cc1plus", 3.0),
            (10**9 + 3, 1.0): ("cron", 0.1),
        },
    )
    assert named(before.until(after, CORES)) == [("chrome", 0.9), ("cc1plus", 0.7)]


def test_a_process_that_took_over_an_id_is_counted_from_its_own_start():
    before = ProcessTimes(0.0, {(10**9, 1.0): ("old", 100.0)})
    after = ProcessTimes(10.0, {(10**9, 5.0): ("new", 4.0)})
    assert named(before.until(after, CORES)) == [("new", 0.4)]


def test_processes_that_have_ended_such_as_ranks_are_left_out():
    before = ProcessTimes(0.0, {(10**9, 1.0): ("rank", 0.0)})
    assert before.until(ProcessTimes(10.0, {}), CORES) == ()


def test_a_process_that_may_not_use_these_cores_is_left_out():
    with subprocess.Popen(["sleep", "30"]) as process:
        try:
            after = ProcessTimes(1.0, {(process.pid, 1.0): ("sleep", 1.0)})
            assert named(ProcessTimes(0.0, {}).until(after, CORES)) == [("sleep", 1.0)]
            assert ProcessTimes(0.0, {}).until(after, {max(CORES) + 1000}) == ()
        finally:
            process.kill()


def test_a_hostile_name_becomes_one_printable_line():
    assert _printable("a\x1b[2J\nb\u202e") == "a?[2J?b?"
    assert _printable("\n" * 3) == "???" and _printable(" ") == "?" and len(_printable("x" * 500)) == 64


def test_this_machine_can_be_read():
    assert any(pid == os.getpid() for pid, _ in ProcessTimes.now().by_process)


def test_the_worker_and_the_service_beside_it_are_no_foreign_programs():
    """The service of `tune` itself was named as "python", and to be ended."""
    sleep = "import time; time.sleep(30)"
    service = subprocess.Popen([sys.executable, "-c", sleep, "shardtune", "serve", "--fd", "3"])
    other = subprocess.Popen([sys.executable, "-c", sleep, "shardtune", "worker"])
    try:
        until(lambda: all("shardtune" in psutil.Process(p.pid).cmdline() for p in (service, other)), 30, "they run")
        beside = {os.getpid(): 5, service.pid: 5, other.pid: 5, 10**9: service.pid, 10**9 + 1: other.pid}
        assert own_processes(beside) == {os.getpid(), service.pid, 10**9}
        elsewhere = beside | {service.pid: 6}
        assert own_processes(elsewhere) == {os.getpid()}, "a service that another command started is another study's"
    finally:
        for process in (service, other):
            process.kill()
            process.wait()
    assert own_processes({}) == own_processes({os.getpid(): None, 7: None}) == {os.getpid()}


def test_this_process_is_named_as_the_worker():
    assert {name for (pid, _), (name, _) in ProcessTimes.now().by_process.items() if pid == os.getpid()} == {
        OWN_PROCESSES
    }

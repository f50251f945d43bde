"""Programs are named by their short names, without what ended, and without anything that a name may hide."""

import os
import subprocess

from shardtune.workers.machine.host_load import ProcessTimes, _printable

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

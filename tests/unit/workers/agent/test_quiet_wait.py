"""A run waits while other programs keep the machine busy, within its bound, and says what takes the cores."""

import subprocess
import sys

import pytest

from shardtune.api_schemas.machines.conditions import ProgramLoad
from shardtune.api_schemas.trials.leases import QuietWait
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.agent import quiet_wait
from shardtune.workers.agent.quiet_wait import QUIET_S, Load, Waiter

CLANG = (ProgramLoad(name="clang", cores=1.3),)
BUSY, QUIET = Load(1.3, CLANG), Load(0.1)


class Machine:
    """A machine whose load in each second is given; its clock moves only while it is measured."""

    def __init__(self, *loads, after=QUIET):
        self.loads, self.after, self.now_s, self.progress = list(loads), after, 0.0, []
        self.waiter = None

    def measure(self, duration_s, give_up):
        self.progress.append(self.waiter.with_wait(None))
        self.now_s += duration_s
        return self.loads.pop(0) if self.loads else self.after

    def wait(self, most_s=60.0, waited_s=0.0, give_up=lambda: False):
        order = QuietWait(most_s=most_s, most_foreign_cores=0.3, waited_s=waited_s)
        self.waiter = Waiter(order, self.measure, lambda: self.now_s)
        self.waiter.wait(give_up)
        return self.waiter


def test_a_quiet_machine_costs_one_look_and_no_wait():
    machine = Machine()
    assert machine.wait().waited_s is None and machine.now_s == quiet_wait.SAMPLE_S


def test_a_busy_machine_is_waited_for_until_it_stays_quiet():
    machine = Machine(*[BUSY] * 10)
    waiter = machine.wait()
    assert waiter.waited_s == pytest.approx(10 + QUIET_S, abs=1.5)
    shown = machine.progress[5]
    assert (shown.phase, shown.foreign_cpu_cores, shown.foreign_programs) == ("waiting_for_quiet", 1.3, CLANG)
    assert waiter.with_wait(None) is None, "the wait is over"
    assert waiter.with_wait(Progress(phase="building")).waited_s == pytest.approx(waiter.waited_s)


def test_a_pause_between_two_bursts_is_not_quiet():
    machine = Machine(*([BUSY] * 2 + [QUIET] * 2) * 4)
    assert machine.wait().waited_s > 16


def test_the_wait_ends_with_its_time_however_busy_the_machine_stays():
    machine = Machine(after=BUSY)
    assert machine.wait(most_s=20, waited_s=100).waited_s == pytest.approx(120)
    assert machine.now_s <= 22


def test_the_wait_ends_at_once_when_the_run_is_taken_away():
    machine = Machine(after=BUSY)
    machine.wait(give_up=lambda: machine.now_s > 7)
    assert machine.now_s <= 9


def test_without_an_order_nothing_is_measured():
    machine = Machine()
    machine.waiter = Waiter(None, machine.measure)
    machine.waiter.wait(lambda: False)
    assert machine.progress == [] and machine.waiter.with_wait(Progress(phase="building")).waited_s is None


def test_a_real_busy_loop_is_seen_by_its_name_and_its_end_ends_the_wait():
    """One loop of at most 30 s; other programs of this machine may be busy, too."""
    loop = "import sys, time; print(1, flush=True)\nend = time.time() + 30\nwhile time.time() < end: pass"
    process = subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE)
    try:
        process.stdout.read(1)
        load = quiet_wait.sample(2.0, lambda: False)
        assert load.foreign_cpu_cores > 0.3
        assert any(program.name.startswith("python") and program.cores > 0.2 for program in load.programs)
        waiter = Waiter(QuietWait(most_s=2, most_foreign_cores=0.05))
        waiter.wait(lambda: False)
        assert waiter.waited_s == pytest.approx(2), "it was busy for the whole wait"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

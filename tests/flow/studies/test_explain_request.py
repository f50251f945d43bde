"""`explain --service`: a service has one of its workers profile the trial, and the command prints what is told."""

import threading

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, diagnosis, failure, quietly


def measured(client):
    """Have a study of two trials measured."""
    worker = SimulatedWorker(client, behave=quietly, task_kinds=TASK_KINDS).register()
    budget = {"max_trials": 2, "max_pairs": 7, "resume_check": False}
    client.post("/v1/studies", json=SPEC | {"budget": budget}).raise_for_status()
    worker.work()


@pytest.fixture
def sqlite_start(sqlite_after):
    """Begin with the study."""
    return sqlite_after(measured)


@pytest.fixture
def worker(http):
    """Worker of a service on which the study was measured."""
    return SimulatedWorker(http, task_kinds=TASK_KINDS).register()


@pytest.fixture
def beside(http, worker):
    """The worker looks for work while the command waits."""
    asked_for = threading.Event()

    def work():
        while not asked_for.wait(0.1):
            worker.work()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    asked_for.set()
    thread.join()


def test_it_waits_for_the_worker_and_then_reads_what_is_stored(worker, beside, run):
    worker.trace = lambda _: diagnosis(host_s=0.39)
    code, reported = run("explain", "last", "--trial", "1")
    assert code == 0 and [finding["kind"] for finding in reported["findings"]] == ["host_bound"]
    worker.trace = lambda _: pytest.fail("a stored one is not made again")
    assert run("explain", "last", "--trial", "1") == (0, reported)


@pytest.mark.parametrize(("kind", "ends"), [(FailureKind.OOM, 3), (FailureKind.CRASH, 4)])
def test_a_profile_that_fails_is_told(worker, beside, run, kind, ends):
    worker.trace = lambda _: failure(kind, "the profiler took too much")
    code, words = run("explain", "last", "--trial", "0", as_json=False)
    assert code == ends and "no diagnosis of trial 0: the profiler took too much" in words


def test_a_time_that_is_over_and_what_cannot_be_asked(worker, run):
    code, words = run("explain", "--timeout-s", "0", as_json=False)
    assert code == 4 and "waiting after 0 s (--timeout-s)" in words
    code, words = run("explain", "last", "--trial", "99", as_json=False)
    assert code == 2 and "trial 99" in words
    code, words = run("explain", "last", "--try", as_json=False)
    assert code == 2 and "--service" in words

"""Tasks that a worker over several hosts takes, and its counters; the ranks are fake."""

import pytest

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ResumeTask, TraceTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.trial_dir import TrialDir
from tests.support.processes.other_user import OTHER_UID, acting, place_of_all_users
from tests.support.workers.worker_fakes import make_task


def task_over(nodes, ranks=2):
    return make_task(cluster=Cluster(device="cpu", nodes=nodes, gpus_per_node=ranks, memory_gib=4, host_memory_gib=8))


@pytest.fixture
def run(tmp_path, fingerprint, warm):
    """Run a task on two hosts with two ranks each."""

    def run_once(task, *acts, **place):
        launcher = warm(*acts)
        launcher.prepare(lambda: False)
        over_two = Workplace(tmp_path / "work", launcher, fingerprint, 4, None, 0, nodes=2, **place)
        create = lambda: TrialDir.create(over_two.work_dir, "run-1", task, fingerprint, 0)  # noqa: E731
        return run_attempt(over_two, task, create, RunLimits(20, 20), lambda: None)

    return run_once


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_gang_counts_what_it_holds_also_where_a_trial_needs_one_of_its_hosts(run, nodes):
    attempted = run(task_over(nodes), *["complete"] * (2 * nodes))
    assert isinstance(attempted.result, Measurement), attempted.result
    assert attempted.gpu_seconds == 4 * attempted.elapsed_s


@pytest.mark.parametrize(
    ("task", "words"), [(task_over(3), "cluster.nodes (3)"), (task_over(2, 3), "ranks of a host (2)")]
)
def test_what_the_hosts_do_not_have_is_rejected(run, task, words):
    attempted = run(task)
    assert isinstance(attempted.result, Failure) and attempted.result.kind == "setup"
    assert words in attempted.result.message


def test_a_worker_over_hosts_rejects_traces_before_it_starts_ranks(run):
    attempted = run(TraceTask.of(task_over(1)))
    assert (attempted.result.kind, attempted.gpu_seconds) == ("setup", 0)
    assert "a worker over 2 hosts records no traces" in attempted.result.message


def test_a_resume_check_over_hosts_needs_a_folder_that_all_see(run, tmp_path):
    task = ResumeTask(trial=task_over(2))
    rejected = run(task).result
    assert isinstance(rejected, Failure) and rejected.kind == "setup" and "--shared-dir" in rejected.message
    shared = tmp_path / "shared"
    own = private_folder.of_this_user(shared)
    (own / "run-1").mkdir(parents=True)
    assert isinstance(run(task, *["resume_check"] * 4, shared_dir=shared).result, ResumeMeasurement)
    assert list(own.iterdir()) == [], "the checkpoint is gone"


def test_a_resume_check_loads_nothing_from_another_user_s_folder(run):
    with place_of_all_users() as shared:
        own = private_folder.of_this_user(shared)
        with acting(lambda: own.mkdir(mode=0o755)):
            rejected = run(ResumeTask(trial=task_over(2)), shared_dir=shared).result
    assert isinstance(rejected, Failure) and rejected.kind == "setup"
    assert f"belongs to uid {OTHER_UID}" in rejected.message

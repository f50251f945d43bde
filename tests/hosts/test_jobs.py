"""deploy/slurm/worker.sbatch through a real `sbatch`: however its worker or its job ends in mid-study, the run is handed back, and
who goes on has the same name.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import requirements
from tests.lab.laboratory import HEAD, Laboratory, for_this_process
from tests.lab.service import LabService
from tests.lab.worker import LabWorker
from tests.support.long_run import WIDE
from tests.support.processes.stack import TINY

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

MEASURE = (
    '{"parity_steps": 2, "max_warmup_steps": 1, "window_steps": 1, "min_windows": 3, "max_windows": 100000,'
    ' "min_measure_s": 4, "max_measure_s": 4}'
)


class Job:
    """A worker's job in a laboratory, and the study that it is at."""

    def __init__(self, laboratory: Laboratory, service: LabService) -> None:
        self._laboratory, self._service = laboratory, service
        self.worker = LabWorker(laboratory, service)
        self.worker.start()
        self.name = f"slurm:lab:{self.worker.job}"
        (self._registered,) = self._await(self._own, 300, "the worker registers")

    def _own(self) -> list[dict[str, Any]]:
        return [worker for worker in self._service.get("/v1/workers")["workers"] if worker["name"] == self.name]

    def study_in_mid_trial(self, micro_batches: tuple[int, ...] = (1,)) -> str:
        """A new one, of as many trials."""
        cluster = self._registered["inventory"]["cluster"]
        assert (cluster["nodes"], cluster["gpus_per_node"]) == (2, 1)
        budget = {"max_trials": len(micro_batches), "max_pairs": 7, "resume_check": False, "repeat_disturbed": 0}
        study = self._service.create(
            {
                "model": TINY,
                "workload": {"sequence_length": 32, "global_batch": 8, "precision": "fp32"},
                "cluster": cluster,
                "budget": budget,
                "space": {"backends": ["ddp"], "knobs": {"micro_batch": list(micro_batches)}},
            }
        )
        self._await(lambda: any(map(_is_measuring, self._service.runs(study))), 300, "a trial trains")
        return study

    def attempts(self, study: str) -> list[dict[str, Any]]:
        return [attempt for run in self._service.runs(study) for attempt in run["attempts"]]

    def ends(self, study: str) -> list[str | None]:
        return [attempt["end"] for attempt in self.attempts(study)]

    def slurm(self, *words: str) -> str:
        return self._laboratory.run(HEAD, list(words)).strip()

    def assert_handed_back(self, study: str) -> None:
        self._await(lambda: "released" in self.ends(study), 90, "the run is handed back")

    def requeue(self) -> None:
        """Once the job is over; Slurm would hold it for two minutes, until its credentials have expired."""
        self._await(lambda: self._state() not in ("COMPLETING", "RUNNING"), 60, "the job is over")
        if self._state() != "PENDING":
            self.slurm("scontrol", "requeue", str(self.worker.job))
        self._await(lambda: self._state() == "PENDING", 60, "the job waits")
        self.slurm("scontrol", "update", f"JobId={self.worker.job}", "StartTime=now")

    def _state(self) -> str:
        return self.slurm("squeue", "--noheader", "--states=all", f"--jobs={self.worker.job}", "--format=%T")

    def assert_goes_on(self, study: str) -> None:
        self._await(lambda: self._service.get(f"/v1/studies/{study}")["state"] == "complete", 300, "the study ends")
        for run in self._service.runs(study):
            assert [attempt["end"] for attempt in run["attempts"]].count("complete") == 1, run
        assert {attempt["worker"] for attempt in self.attempts(study)} == {self.name}

    @staticmethod
    def _await(condition: Any, seconds: float, description: str) -> Any:
        return LabService.await_true(condition, seconds, description)


def _is_measuring(run: dict[str, Any]) -> bool:
    return bool(run["progress"]) and run["progress"]["phase"] == "measuring"


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    requirements.require("slurm")
    with for_this_process(hosts=2, ranks=1, engine="slurm") as running_laboratory:
        yield running_laboratory


@pytest.fixture(scope="module")
def service(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabService]:
    with LabService(laboratory, tmp_path_factory.mktemp("service"), MEASURE=MEASURE) as started:
        yield started


@pytest.fixture
def job(laboratory: Laboratory, service: LabService) -> Iterator[Job]:
    begun = Job(laboratory, service)
    yield begun
    begun.worker.end()
    assert not any(host.find("shardtune.workers") for host in laboratory.nodes)


def test_a_cancelled_job_hands_its_run_back_and_goes_on_when_requeued(job: Job) -> None:
    study = job.study_in_mid_trial()
    job.slurm("scancel", str(job.worker.job))
    LabService.await_true(lambda: job.ends(study)[0] is not None, 60, "the run is handed back")
    job.requeue()
    job.assert_goes_on(study)
    assert job.ends(study) == ["released", "complete"]


@WIDE
def test_a_killed_worker_is_started_again(job: Job) -> None:
    """Within its job: a third start of a worker over two hosts, 20 s of a core."""
    study = job.study_in_mid_trial()
    for agent in job.worker.agents_on(job.worker.agent_host):
        os.kill(agent, signal.SIGKILL)
    LabService.await_true(lambda: job.ends(study)[0] is not None, 60, "the run is given up")
    LabService.await_true(lambda: len(job.ends(study)) == 2, 120, "the worker is started again, and takes the run")
    job.assert_goes_on(study)


@WIDE
def test_a_job_requeued_in_mid_trial_goes_on(job: Job) -> None:
    study = job.study_in_mid_trial()
    job.slurm("scontrol", "requeue", str(job.worker.job))
    job.assert_handed_back(study)
    job.requeue()
    job.assert_goes_on(study)


@WIDE
def test_a_job_whose_time_ends_hands_its_run_back_and_goes_on_when_requeued(job: Job) -> None:
    # Slurm looks at limits twice a minute, and gives the warning of `--signal` up to a minute early.
    study = job.study_in_mid_trial((1, 2, 4))
    job.slurm("scontrol", "update", f"JobId={job.worker.job}", "TimeLimit=1")
    job.assert_handed_back(study)
    job.requeue()
    job.slurm("scontrol", "update", f"JobId={job.worker.job}", "TimeLimit=UNLIMITED")
    job.assert_goes_on(study)


@WIDE
def test_a_host_lost_in_mid_trial_costs_the_run_and_the_requeued_job_goes_on(laboratory: Laboratory, job: Job) -> None:
    study = job.study_in_mid_trial()
    lost = next(host for host in laboratory.nodes if host is not job.worker.agent_host)
    lost.cut_power()
    LabService.await_true(lambda: job.ends(study)[0] is not None, 60, "the run is handed back")
    laboratory.restore(lost.name)
    job.assert_goes_on(study)

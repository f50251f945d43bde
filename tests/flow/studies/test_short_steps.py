"""A study of long steps measures short ones, keeps its runs comparable, and times whole steps once after the verdict."""

from typing import Any

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import Lease, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.short_steps import ShortStepTimes
from shardtune.tuner.prediction import catalogue
from tests.support.service.simulated_worker import (
    FINGERPRINT,
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
    on_quiet_machine,
    speed_of,
)

CLUSTER = catalogue.parse_cluster("8xh100")
LONG: dict[str, Any] = {
    "cluster": "8xh100",
    "workload": {"sequence_length": 64, "global_batch": 64000},
    "space": {"backends": ["ddp", "zero", "fsdp2"], "knobs": {"malloc": "default", "micro_batch": [1, 2, 4]}},
}
"""Steps of a tiny model that are predicted to take many seconds: thousands of micro batches."""
NEW, OLD = {}, {"protocol_version": 1}


class ShortStepWorker(SimulatedWorker):
    """Worker on a quiet machine that measures as its plans say, and remembers the runs. `off`: error of each extension."""

    def __init__(self, client, off: float = 0.0, versions: dict[str, int] = NEW, name: str = "sim") -> None:
        fingerprint = FINGERPRINT.model_copy(update={"device": "cuda", "gpu": CLUSTER.gpu})
        super().__init__(client, name=name, behave=self._measure, cluster=CLUSTER, fingerprint=fingerprint)
        self.off, self.versions, self.tasks = off, versions, list[tuple[Lease, TrialTask]]()
        self.register(**versions)

    def post(self, path: str, body: dict[str, Any]):
        return super().post(path, self.versions | body if path != "/v1/workers" else body)

    def _measure(self, lease: Lease, task: TrialTask) -> Measurement:
        self.tasks.append((lease, task))
        short = task.plan.short_steps
        is_extended = short is not None and short.accumulations is not None
        measured = on_quiet_machine(measurement(speed_of(task.config) * (1 + self.off * is_extended)))
        if short is None:
            return measured
        whole = task.config.accumulation(task.workload.global_batch, 8)
        times = ShortStepTimes(
            parity_samples=short.parity_samples,
            parity_accumulation=short.parity_accumulation,
            accumulations=short.accumulations,
            fewer_s=(0.1,) * 3 if is_extended else (),
            more_s=(0.2,) * 3 if is_extended else (),
        )
        return measured.model_copy(update={"short_steps": times, "gradient_accumulation": whole})

    def plans(self):
        return [task.plan.short_steps for _, task in self.tasks]


def study_of(client, worker, **changes):
    study_id = client.post("/v1/studies", json=SPEC | LONG | changes).raise_for_status().json()["study_id"]
    worker.work()
    return client.get(f"/v1/studies/{study_id}").json()


@pytest.fixture(scope="module")
def long_start(sqlite_after):
    """Database with a finished study of long steps, its worker, and the study."""
    ended = []

    def long_study(client):
        worker = ShortStepWorker(client, off=0.01)
        ended.append((worker, study_of(client, worker)))

    return sqlite_after(long_study), *ended[0]


@pytest.fixture
def sqlite_start(request, sqlite_template):
    """Begin with the study of long steps where a test names it."""
    named = "long_study" in request.fixturenames
    return request.getfixturevalue("long_start")[0] if named else sqlite_template


@pytest.fixture
def long_study(quick_client, long_start):
    """Worker of the study of long steps that the service's database begins with, and the study."""
    return long_start[1:]


def test_a_study_of_long_steps_ends_with_two_runs_of_whole_steps_that_its_answer_states(quick_client, long_study):
    worker, study = long_study
    result, plans = study["result"], worker.plans()
    assert {plan.parity_samples for plan in plans} == {16}, "losses compare at one batch"
    assert all(plan.accumulations for plan in plans[:-2]) and not any(plan.accumulations for plan in plans[-2:])
    compared = {result["best"]["trial_number"], result["baseline"]["trial_number"]}
    assert {lease.trial_number for lease, _ in worker.tasks[-2:]} == compared
    assert {check["trial_number"] for check in result["whole_steps"]} == compared
    assert all(check["is_confirmed"] for check in result["whole_steps"]) and result["verdict"] == "confirmed"
    trials = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    whole = [run for run in trials[result["best"]["trial_number"]]["runs"] if run["is_whole_step"]]
    assert len(whole) == 1 and whole[0]["comparison_block"] is None
    assert result["best"]["tokens_per_s_per_gpu"] == whole[0]["measurement"]["tokens_per_s_per_gpu"]


def test_the_page_says_how_the_speeds_were_measured(quick_client, long_study):
    _, study = long_study
    page = quick_client.get(f"/studies/{study['study_id']}").text
    assert "extended from short steps, and whole steps timed once" in page and "1.0 %" in page
    trials = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    validation = [run for trial in trials for run in trial["runs"] if run["purpose"] == "validation"]
    compared = sum(run["state"] == "complete" and not run["is_whole_step"] for run in validation)
    assert compared < len(validation) and f"{compared} of at most" in page, "whole steps are no run of the comparison"


def test_a_wrong_extension_leaves_the_study_undecided(quick_client):
    result = study_of(quick_client, ShortStepWorker(quick_client, off=0.05))["result"]
    assert result["verdict"] == "undecided"
    assert any("more than 3% apart" in note for note in result["notes"])


def test_a_study_that_wants_whole_steps_gets_them(quick_client):
    worker = ShortStepWorker(quick_client)
    result = study_of(quick_client, worker, budget={"max_trials": 8, "short_steps": False})["result"]
    assert set(worker.plans()) == {None} and result["whole_steps"] == []


def test_a_study_that_begins_with_a_worker_of_the_last_release_has_whole_steps_throughout(quick_client):
    old = ShortStepWorker(quick_client, versions=OLD, name="old")
    study_id = quick_client.post("/v1/studies", json=SPEC | LONG).json()["study_id"]
    for _ in range(3):
        old.do(old.lease())
    new = ShortStepWorker(quick_client, name="new")
    new.work()
    assert set(old.plans()) == set(new.plans()) == {None}
    assert quick_client.get(f"/v1/studies/{study_id}").json()["result"]["whole_steps"] == []


def test_a_worker_of_the_last_release_gets_no_run_whose_losses_would_not_compare(quick_client):
    new = ShortStepWorker(quick_client, name="new")
    study_id = quick_client.post("/v1/studies", json=SPEC | LONG).json()["study_id"]
    for _ in range(3):
        new.do(new.lease())
    old = ShortStepWorker(quick_client, versions=OLD, name="old")
    assert old.lease() is None
    reason = quick_client.get(f"/v1/studies/{study_id}").json()["reason"]
    assert "short_steps" in reason and "upgrade the reader" in reason
    new.work()
    assert quick_client.get(f"/v1/studies/{study_id}").json()["state"] == "complete"


def test_an_attempt_that_was_lost_is_repeated_elsewhere_with_the_same_micro_batches(quick_client):
    first, second = (ShortStepWorker(quick_client, name=name) for name in ("first", "second"))
    quick_client.post("/v1/studies", json=SPEC | LONG)
    first.do(first.lease())
    lost = first.lease()
    first.register(**NEW)
    again = second.lease()
    assert (again.run_id, again.attempt) == (lost.run_id, 2) and again.task.plan == lost.task.plan


def test_a_whole_step_that_does_not_fit_begins_the_comparison_anew_without_its_trial(quick_client):
    worker = ShortStepWorker(quick_client)
    measure, failed = worker.behave, list[int]()

    def out_of_memory_once(lease: Lease, task: TrialTask):
        short = task.plan.short_steps
        if short is not None and short.accumulations is None and not failed:
            failed.append(lease.trial_number)
            return failure(FailureKind.OOM)
        return measure(lease, task)

    worker.behave = out_of_memory_once
    study = study_of(quick_client, worker)
    assert study["state"] == "complete" and failed
    assert failed[0] not in {study["result"][part]["trial_number"] for part in ("best", "baseline")}


@pytest.mark.parametrize("global_batch", [64, 8])
def test_a_study_of_short_or_few_micro_batches_times_whole_steps(quick_client, global_batch):
    worker = ShortStepWorker(quick_client)
    study_of(
        quick_client,
        worker,
        workload={"sequence_length": 64, "global_batch": global_batch},
        space={"backends": ["ddp", "fsdp2"]},
    )
    assert set(worker.plans()) == {None}

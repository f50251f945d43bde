"""A study that is cancelled during a rehearsal for its target has its answer already, and completes with it."""

from shardtune.api_schemas.trials.leases import TASK_KINDS, TargetRehearsalTask
from tests.support.service.scenarios import WORKLOAD, create
from tests.support.service.simulated_worker import SimulatedWorker, quietly, rehearsed

STUDY = {
    "target": "4x2",
    "workload": WORKLOAD | {"global_batch": 32},
    "space": {"backends": ["fsdp1", "fsdp2"], "knobs": {"malloc": "default", "compile": False}},
    "budget": {"max_trials": 6},
}


def test_a_study_cancelled_during_a_rehearsal_completes_with_its_known_answer(quick_client):
    """Its answer was lost with the rehearsal."""
    worker = SimulatedWorker(quick_client, behave=quietly, rehearse=rehearsed, task_kinds=TASK_KINDS).register()
    study_id = create(quick_client, **STUDY)
    while not isinstance((lease := worker.lease()).task, TargetRehearsalTask):
        worker.do(lease)
    study = quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status().json()
    assert study["state"] == "complete" and study["result"]["best"]
    (*_, last) = study["result"]["projection"]["rehearsals"]
    assert last["problem"]["message"] == "the study was cancelled by its user"
    assert worker.lease() is None

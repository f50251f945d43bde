"""`max_gpu_seconds` and `max_wall_seconds` bound a whole study: search, pairs and checks, except a run under way."""

from typing import Any

import pytest

from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.support.service import run_history
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, speed_of, well

BASELINE = {
    "baseline": {"strategy": {"kind": "ddp"}, "micro_batch": 1},
    "space": {"backends": ["ddp", "zero", "fsdp2"], "knobs": {"malloc": "default"}},
}
"""Three trials begin the search: the baseline, and the defaults of ZeRO and FSDP2. Only FSDP2 is near the fastest."""
RUN_GPU_S = 6.0
"""GPU-seconds of each run: 3 s on two ranks."""


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").raise_for_status().json()


def extend(client, study_id, **more):
    return client.post(f"/v1/studies/{study_id}:extend", json=more)


def worked(client, behave=well, **budget):
    """A worker that knows resume checks, and the study that it has worked on to its end."""
    worker = SimulatedWorker(client, behave=behave, task_kinds=TASK_KINDS).register()
    study_id = create(client, **BASELINE, budget=budget)
    worker.work()
    assert read(client, study_id)["state"] == "complete"
    return worker, study_id


@pytest.mark.wide_on_postgres
def test_a_study_keeps_its_gpu_seconds_and_confirms_what_they_can_prove(client):
    _, study_id = worked(client, max_gpu_seconds=160.0)
    study = read(client, study_id)
    assert study["gpu_seconds"] <= 160.0
    assert study["reason_code"] == "gpu_seconds_used"
    assert study["reason"].startswith("the rest of budget.max_gpu_seconds (160) is kept for the final comparison (")
    result = study["result"]
    assert (result["verdict"], result["speedup"]["pairs"]) == ("confirmed", 7)
    assert result["resume_check"]["outcome"] == "passed"
    assert sum(study["trials"].values()) > 3, "what the comparison does not need is for the search"
    page = client.get(f"/studies/{study_id}").text
    assert "is kept for the final comparison" in page and "confirmed" in page
    assert run_history.faults(client.app.state.context.db) == []


def test_a_study_keeps_its_seconds(quick_client, clock):
    begun = quick_client.app.state.context.now()

    def timed(lease, task):
        clock.turn(3)
        return well(lease, task)

    _, study_id = worked(quick_client, timed, max_wall_seconds=75.0)
    study, took = read(quick_client, study_id), quick_client.app.state.context.now() - begun
    assert took.total_seconds() <= 75.0 and study["result"]["verdict"] == "confirmed"
    assert study["reason"].startswith("the rest of budget.max_wall_seconds (75) is kept for the final comparison (")


def test_pairs_that_do_not_fit_leave_it_undecided_and_added_pairs_raise_the_limit(quick_client):
    worker, study_id = worked(quick_client, max_gpu_seconds=60.0)
    study = read(quick_client, study_id)
    result = study["result"]
    # The summary and three trials took 24, two pairs 24, and the resume check 6 of the 12 that were kept for it.
    assert (study["gpu_seconds"], result["verdict"], result["undecided"]["pairs"]) == (54.0, "undecided", 2)
    assert result["undecided"]["ended_by"] == "gpu_seconds_used"
    (note,) = (note for note in result["notes"] if "max_gpu_seconds" in note)
    assert "leaves 0 GPU-seconds beside the checks of the answer, and a pair takes about 12" in note
    rejected = extend(quick_client, study_id, add_trials=3)
    assert rejected.json()["code"] == "nothing_to_extend", rejected.text
    assert "is kept for the final comparison" in rejected.json()["detail"]
    extended = extend(quick_client, study_id, add_pairs=5).raise_for_status().json()
    assert extended["spec"]["budget"]["max_gpu_seconds"] == 54.0 + 6 * 12.0 + 12.0
    worker.work()
    study = read(quick_client, study_id)
    assert (study["state"], study["result"]["verdict"]) == ("complete", "confirmed")
    assert study["result"]["speedup"]["pairs"] == 7 and study["gpu_seconds"] == 54.0 + 10 * RUN_GPU_S + RUN_GPU_S


def test_more_gpu_seconds_let_the_search_and_a_new_comparison_go_on(quick_client):
    worker, study_id = worked(quick_client, max_gpu_seconds=60.0)
    extend(quick_client, study_id, add_gpu_seconds=200.0).raise_for_status()
    worker.work()
    study = read(quick_client, study_id)
    assert study["state"] == "complete" and study["gpu_seconds"] <= 260.0
    assert study["result"]["verdict"] == "confirmed" and sum(study["trials"].values()) > 3


def test_only_the_run_under_way_exceeds_the_limit(quick_client, clock):
    """Validation runs take four times as long as the search let expect."""
    runs: dict[int, int] = {}

    def slow_again(lease, task) -> Any:
        runs[lease.trial_number] = runs.get(lease.trial_number, 0) + 1
        if runs[lease.trial_number] > 1:
            clock.turn(19)
        return measurement(speed_of(task.config))

    _, study_id = worked(quick_client, slow_again, max_gpu_seconds=48.0)
    study = read(quick_client, study_id)
    # Of the 19 s of its lease, 13 are charged on two ranks: 6 s may be the clocks' difference.
    assert study["gpu_seconds"] == 24.0 + 26.0 and sorted(runs.values()) == [1, 1, 2]
    result = study["result"]
    assert result["verdict"] == "undecided" and result["final_comparison"]["pairs"] == 0
    assert any(
        "leaves 0 GPU-seconds" in note and "the rest of a pair takes about 6" in note for note in result["notes"]
    )
    assert result["resume_check"]["outcome"] == "not_checked"
    assert result["resume_check"]["reason"] == "budget.max_gpu_seconds (48) is used up"


def test_the_trials_of_the_baseline_run_however_small_the_rest(quick_client):
    _, study_id = worked(quick_client, max_gpu_seconds=25.0)
    study = read(quick_client, study_id)
    # The resume check began below the limit, and is the one run that exceeds it.
    assert study["trials"] == {"complete": 3} and study["gpu_seconds"] == 24.0 + RUN_GPU_S
    assert study["result"]["verdict"] == "undecided"
    assert study["result"]["baseline"]["trial_number"] == 0

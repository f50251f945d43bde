"""Pareto front and importance of knobs: over REST and on the study's page."""

from tests.support.service.page_reader import page
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, on_quiet_machine

SPACE = {"backends": ["ddp", "zero", "fsdp2"]}


def behave(_lease, task):
    """Larger micro batches are faster, and take more memory."""
    batch = task.config.micro_batch
    return on_quiet_machine(measurement(1000.0 * batch + len(task.config.backend), peak_gib=0.2 * batch))


def tuned(client, trials):
    worker = SimulatedWorker(client, behave=behave).register()
    study_id = create(client, space=SPACE, budget={"max_trials": trials})
    worker.work()
    return study_id


def test_front_and_importance_of_a_finished_study(quick_client):
    study_id = tuned(quick_client, 24)
    front = quick_client.get(f"/v1/studies/{study_id}/pareto").json()
    assert front["memory"] == "allocated" and front["trials"] == 24 and front["limit_gib"] == 4 * 0.95
    batches = [point["config"]["micro_batch"] for point in front["points"]]
    assert batches == sorted(set(batches)) and len(batches) > 1
    assert [point["peak_memory_gib"] for point in front["points"]] == [0.2 * batch for batch in batches]
    assert all(point["config"]["strategy"]["kind"] == "fsdp2" for point in front["points"][-1:])
    body = quick_client.get(f"/v1/studies/{study_id}/importance").json()
    assert body["trials"] == 24 and body["reason"] is None
    first = body["knobs"][0]
    assert first["knob"] == "micro_batch" and first["is_above_chance"]
    text = page(quick_client, f"/studies/{study_id}")
    assert 'id="importance"' in text and "micro batch" in text and "The Pareto front as a table" in text


def test_too_few_trials_get_a_reason(quick_client):
    study_id = tuned(quick_client, 8)
    body = quick_client.get(f"/v1/studies/{study_id}/importance").json()
    assert body["knobs"] == [] and "8 feasible trials say too little" in body["reason"]
    assert "8 feasible trials say too little" in page(quick_client, f"/studies/{study_id}")
    SimulatedWorker(quick_client).register()
    empty = create(quick_client, space=SPACE)
    assert quick_client.get(f"/v1/studies/{empty}/pareto").json()["points"] == []
    assert quick_client.get("/v1/studies/study-none/pareto").json()["code"] == "unknown_study"

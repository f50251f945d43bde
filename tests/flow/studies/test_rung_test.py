"""Studies with a target after others of the same work on fewer GPUs."""

import pytest

from shardtune.db.queries.targets.smaller_rungs import EndedStudy
from shardtune.service.lifecycle import smaller_rungs
from tests.support.service.scenarios import THREE_BACKENDS, WORKLOAD
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC, SimulatedWorker, quietly

ONE_RANK = CLUSTER.model_copy(update={"gpus_per_node": 1})


def finished(client, cluster, target, name, fingerprint=FINGERPRINT, **changes):
    """Finished study on a worker of its own, which leaves after it."""
    worker = SimulatedWorker(client, name=name, behave=quietly, cluster=cluster, fingerprint=fingerprint).register()
    spec = SPEC | THREE_BACKENDS | {"target": target, "workload": WORKLOAD | {"global_batch": 32}} | changes
    answer = client.post("/v1/studies", json=spec | {"cluster": cluster.model_dump(mode="json")})
    assert answer.status_code == 201, answer.text
    worker.work()
    return client.get(f"/v1/studies/{answer.json()['study_id']}").json()


def on_one_rank(client):
    """Make a study from which larger ones are foretold."""
    finished(client, ONE_RANK, "8x1", "one")


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with the study on one rank where a test names it."""
    return sqlite_after(on_one_rank) if "below" in request.fixturenames else sqlite_template


@pytest.fixture
def below(quick_client):
    """Study on one rank that the service's database begins with."""
    (study,) = quick_client.get("/v1/studies").json()["studies"]
    return study


@pytest.mark.wide_on_postgres
def test_the_second_study_says_how_well_the_first_foretold_it(client):
    below = finished(client, ONE_RANK, "8x1", "one")
    assert below["state"] == "complete" and below["spec"]["workload"]["global_batch"] == 4
    assert below["result"]["projection"]["rung_test"] is None
    study = finished(client, CLUSTER, "4x2", "two")
    test = study["result"]["projection"]["rung_test"]
    assert test is not None, study["result"]["projection"]["notes"]
    assert test["from_gpus"] == [1] and test["studies"] == [below["study_id"]]
    assert len(test["trials"]) > 0 and 0 <= test["inside_band"] <= len(test["trials"])
    page = client.get(f"/studies/{study['study_id']}", headers={"accept": "text/html"}).text
    assert "Rung test: 1 GPU foretold" in page


def test_a_newer_study_of_few_trials_hides_no_trial_of_a_longer_one(quick_client, below, clock):
    before = finished(quick_client, CLUSTER, "4x2", "two")["result"]["projection"]["rung_test"]
    clock.turn(60)
    short = finished(quick_client, ONE_RANK, "8x1", "three", budget=SPEC["budget"] | {"max_trials": 2}, seed=1)
    after = finished(quick_client, CLUSTER, "4x2", "four")["result"]["projection"]["rung_test"]
    assert len(before["trials"]) > 2
    assert [row["trial_number"] for row in after["trials"]] == [row["trial_number"] for row in before["trials"]]
    assert after["studies"] == [short["study_id"], below["study_id"]]


OTHER_WORK = {
    "batch": {"workload": WORKLOAD | {"global_batch": 64}},
    "torch": {"fingerprint": FINGERPRINT.model_copy(update={"torch": "2.14.0"})},
    "model": {"model": "gpt2-tiny"},
}


def test_a_study_of_other_work_is_no_rung(quick_client):
    """Each of three differs in one thing; whichever counted would be among the studies of a rung test."""
    for name, changes in OTHER_WORK.items():
        assert finished(quick_client, ONE_RANK, "8x1", name, **changes)["state"] == "complete"
    study = finished(quick_client, CLUSTER, "4x2", "two")
    assert study["state"] == "complete" and study["result"]["projection"]["rung_test"] is None


def test_a_rung_is_smaller_and_its_nodes_are_of_one_size(quick_client, below):
    with quick_client.app.state.context.db.read() as session:
        (ended,) = smaller_rungs.smaller_rungs.ended_studies(session, "default")
    own = EndedStudy("own", ended.spec, ended.cluster, ended.fingerprint)
    assert not smaller_rungs.is_rung_below(ended, own)

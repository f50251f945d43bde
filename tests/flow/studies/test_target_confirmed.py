"""Studies on the target itself, which confirm a projection or change it."""

import json

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from tests.support.service.scenarios import THREE_BACKENDS, WORKLOAD, decide, tune
from tests.support.service.simulated_worker import CLUSTER, SimulatedWorker, failure, measurement

TARGET = {"target": "4x2", "workload": WORKLOAD | {"global_batch": 32}}
THERE = CLUSTER.model_copy(update={"nodes": 4})


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").json()


@pytest.fixture
def projected(quick_client):
    """Study with a projection to four nodes."""
    study = read(quick_client, tune(quick_client, **(TARGET | THREE_BACKENDS)))
    assert study["result"]["projection"]["verdict"] == "projected", study["result"]["notes"]
    return study


def confirming_request(client, study):
    """Study of the file `confirm.json`."""
    files = client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"}).json()["files"]
    assert f"study {study['study_id']}" in files["confirm.sbatch"]
    return json.loads(files["confirm.json"])


def choices(study):
    projection = study["result"]["projection"]
    return projection["best"], projection["runners_up"][0]


def run_there(client, request, speeds):
    """Finished study of a worker with the target's nodes. `speeds` of the first and the second choice, or how it fails;
    None: no memory."""
    second = TrialConfig.model_validate(request["baseline"])

    def behave(_lease, task):
        speed = speeds[1] if task.config == second else speeds[0]
        if isinstance(speed, FailureKind):
            return failure(speed)
        return failure(FailureKind.OOM) if speed is None else measurement(speed)

    worker = SimulatedWorker(client, name="there", behave=behave, cluster=THERE).register()
    answer = client.post("/v1/studies", json=request)
    assert answer.status_code == 201, answer.text
    worker.work()
    return read(client, answer.json()["study_id"])


def target_question(**changes):
    workload = WORKLOAD | {"global_batch": 32}
    asked = {"model": "llama-tiny", "cluster": THERE.model_dump_json(), "workload": json.dumps(workload)}
    return asked | {"match": "exact"} | changes


@pytest.mark.parametrize(
    ("speeds", "verdict", "place", "pairs"),
    [
        ((1200.0, 1000.0), "confirmed", 0, True),
        ((800.0, 1000.0), "changed", 1, True),
        ((None, 1000.0), "changed", 1, False),
        ((1200.0, None), "confirmed", 0, False),
    ],
)
def test_a_study_on_the_target_makes_the_answer(quick_client, projected, speeds, verdict, place, pairs):
    there = run_there(quick_client, confirming_request(quick_client, projected), speeds)
    assert there["state"] == "complete", there["reason"]
    projection = read(quick_client, projected["study_id"])["result"]["projection"]
    assert projection["verdict"] == verdict
    confirmation, expected = projection["confirmation"], choices(projected)[place]
    assert confirmation["study_id"] == there["study_id"] and confirmation["outcome"] == verdict
    assert confirmation["config"] == expected["config"] and bool(confirmation["pairs"]) == pairs
    assert [row["tokens_per_s_per_gpu"] for row in confirmation["measured"]] == [speed for speed in speeds if speed]
    # What was projected stays as it was, so that its error can be read.
    assert (projection["best"], projection["runners_up"][0]) == choices(projected)
    for row in confirmation["measured"]:
        assert row["error"] == pytest.approx(row["projected"]["expected"] / row["tokens_per_s_per_gpu"] - 1)
    export = quick_client.get(f"/v1/studies/{projected['study_id']}/export", params={"which": "target"}).json()
    assert json.loads(export["files"]["config.json"])["config"] == expected["config"]
    served = quick_client.get("/v1/best", params=target_question()).json()
    assert served["match"] == "exact" and served["best"]["config"] == expected["config"]
    page = quick_client.get(f"/studies/{projected['study_id']}").text
    section = page[page.index('id="projection"') :]
    assert verdict in section and there["study_id"] in section and "Nothing was measured there" not in section


def test_pairs_that_do_not_decide_leave_the_projection_and_say_so(quick_client, projected):
    speeds = iter([900.0, 1000.0, 1100.0, 950.0] * 100)
    request = confirming_request(quick_client, projected) | {"budget": {"max_trials": 2, "max_pairs": 7}}
    worker = SimulatedWorker(quick_client, behave=lambda _lease, _task: measurement(next(speeds)), cluster=THERE)
    worker.register()
    study_id = quick_client.post("/v1/studies", json=request).json()["study_id"]
    worker.work()
    verdict = read(quick_client, study_id)["result"]["verdict"]
    projection = read(quick_client, projected["study_id"])["result"]["projection"]
    assert verdict == "undecided" and projection["verdict"] == "projected"
    assert projection["confirmation"]["outcome"] == "undecided"
    page = quick_client.get(f"/studies/{projected['study_id']}").text
    assert "did not decide" in page[page.index('id="projection"') :]


def test_a_second_comparison_replaces_the_first(quick_client, projected):
    request = confirming_request(quick_client, projected)
    run_there(quick_client, request, (1200.0, 1000.0))
    second = run_there(quick_client, request, (800.0, 1000.0))
    projection = read(quick_client, projected["study_id"])["result"]["projection"]
    assert projection["verdict"] == "changed" and projection["confirmation"]["study_id"] == second["study_id"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"baseline": {"strategy": {"kind": "ddp"}, "micro_batch": 1}}, "another baseline"),
        ({"space": {"backends": ["ddp"]}}, "another space"),
        ({"workload": WORKLOAD | {"global_batch": 64}}, "another workload"),
        ({"cluster": CLUSTER.model_dump(mode="json")}, "another cluster"),
        ({"confirms": "a b"}, "confirms"),
    ],
)
def test_a_study_that_compares_something_else_is_rejected(quick_client, projected, changes, words):
    request = confirming_request(quick_client, projected) | changes
    SimulatedWorker(quick_client, name="there", cluster=THERE).register()
    SimulatedWorker(quick_client, name="here").register()
    answer = quick_client.post("/v1/studies", json=request)
    assert answer.status_code == 422 and words in answer.text, answer.text
    assert "confirms" in {error["field"] for error in answer.json()["errors"]}


def test_a_study_without_a_projection_cannot_be_confirmed(quick_client, projected):
    plain = tune(quick_client)
    SimulatedWorker(quick_client, name="there", cluster=THERE).register()
    request = confirming_request(quick_client, projected) | {"confirms": plain}
    answer = quick_client.post("/v1/studies", json=request)
    assert answer.status_code == 422 and "without two projected choices" in answer.text


def test_a_job_with_a_database_of_its_own_compares_and_notes_that_it_reports_to_nobody(quick_client, projected):
    request = confirming_request(quick_client, projected) | {"confirms": "study-elsewhere"}
    there = run_there(quick_client, request, (1200.0, 1000.0))
    assert there["result"]["verdict"] == "confirmed"
    assert any("confirms (study-elsewhere) is no study of this database" in note for note in there["warnings"])
    assert read(quick_client, projected["study_id"])["result"]["projection"]["verdict"] == "projected"


def projection_of(client, study):
    return read(client, study["study_id"])["result"]["projection"]


def exported_config(client, study):
    export = client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"}).json()
    return json.loads(export["files"]["config.json"])["config"]


def proposal_of(client, study):
    rows = client.get("/v1/recommendations", params={"state": "proposed"}).json()["recommendations"]
    (row,) = [row for row in rows if row["study_id"] == study["study_id"]]
    return row


def test_a_comparison_that_waits_for_approval_changes_nothing_until_it_is_approved(quick_client, projected):
    client, (first, second) = quick_client, choices(projected)
    assert client.put("/v1/projects/default", json={"requires_approval": True}).status_code == 200
    there = run_there(client, confirming_request(client, projected), (800.0, 1000.0))
    question = target_question(projections="true")

    def served():
        best = client.get("/v1/best", params=question).json()
        return projection_of(client, projected)["verdict"], exported_config(client, projected), best["best"]["config"]

    as_before = ("projected", first["config"], first["config"])
    assert served() == as_before
    target_key = proposal_of(client, there)["target_key"]
    assert decide(client, target_key, "reject").status_code == 200
    assert served() == as_before
    again = run_there(client, confirming_request(client, projected), (800.0, 1000.0))
    assert served() == as_before
    assert decide(client, target_key, "approve").status_code == 200
    assert served() == ("changed", second["config"], second["config"])
    assert projection_of(client, projected)["confirmation"]["study_id"] == again["study_id"]


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.DEADLINE, FailureKind.SETUP])
def test_a_choice_that_failed_for_another_reason_than_memory_decides_nothing(quick_client, projected, kind):
    there = run_there(quick_client, confirming_request(quick_client, projected), (kind, 1000.0))
    assert there["state"] == "complete", there["reason"]
    projection = projection_of(quick_client, projected)
    assert (projection["verdict"], projection["confirmation"]["outcome"]) == ("projected", "undecided")
    assert exported_config(quick_client, projected) == choices(projected)[0]["config"]


def test_a_choice_that_never_ran_decides_nothing(quick_client, projected):
    request = confirming_request(quick_client, projected) | {"budget": {"max_trials": 1}}
    there = run_there(quick_client, request, (2000.0, 1000.0))
    assert there["state"] == "complete", there["reason"]
    projection = projection_of(quick_client, projected)
    assert (projection["verdict"], projection["confirmation"]["outcome"]) == ("projected", "undecided")
    assert [row["config"] for row in projection["confirmation"]["measured"]] == [choices(projected)[1]["config"]]


def test_an_undecided_repeat_leaves_the_earlier_decision(quick_client, projected):
    request = confirming_request(quick_client, projected)
    first = run_there(quick_client, request, (800.0, 1000.0))
    run_there(quick_client, request, (FailureKind.CRASH, 1000.0))
    projection = projection_of(quick_client, projected)
    assert projection["verdict"] == "changed" and projection["confirmation"]["study_id"] == first["study_id"]


def test_a_longer_search_keeps_what_was_found_about_the_same_choices(quick_client, projected):
    run_there(quick_client, confirming_request(quick_client, projected), (800.0, 1000.0))
    before = projection_of(quick_client, projected)
    path = f"/v1/studies/{projected['study_id']}:extend"
    assert quick_client.post(path, json={"add_trials": 1}).status_code == 200
    SimulatedWorker(quick_client).register().work()
    after = projection_of(quick_client, projected)
    assert sum(read(quick_client, projected["study_id"])["trials"].values()) > sum(projected["trials"].values())
    # Its speeds may be projected anew, but the two choices are the same.
    assert after["best"]["config"] == before["best"]["config"]
    assert after["runners_up"][0]["config"] == before["runners_up"][0]["config"]
    assert (after["verdict"], after["confirmation"]) == ("changed", before["confirmation"])

"""Answer of a study whose machine was too busy: who gets it, what replaces it, and how it becomes a verdict."""

import pytest

from shardtune.api_schemas.recommendations.best import BestConfig, ConfidenceLevel
from shardtune.api_schemas.studies.budget import MOST_PAIRS
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.service.best.busy_answers import reject_too_busy
from shardtune.service.http.errors import Conflict
from tests.flow.studies.busy.busy_studies import FEW, OWN_BASELINE, beside, bursts, newest_decision, studied
from tests.support.service.scenarios import ASK
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

BUSY_STUDY = "busy"


def made_too_busy(client):
    """Make the study that most rules here are about."""
    worker = SimulatedWorker(client, behave=bursts()).register()
    spec = SPEC | OWN_BASELINE | {"budget": FEW}
    client.post("/v1/studies", json=spec, params={"study_id": BUSY_STUDY}).raise_for_status()
    worker.work(400)


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with the study where a test names it."""
    return sqlite_after(made_too_busy) if "busy_study" in request.fixturenames else sqlite_template


@pytest.fixture
def busy_study(quick_client):
    """Study that the service's database begins with, as the service tells it."""
    return quick_client.get(f"/v1/studies/{BUSY_STUDY}").json()


def test_more_pairs_on_a_quiet_machine_turn_too_busy_into_a_verdict(quick_client, busy_study):
    missing_pairs = 7 + busy_study["result"]["too_busy"]["missing_runs"] // 2
    worker = SimulatedWorker(quick_client, behave=beside(lambda: 0.0)).register()
    more = {"add_pairs": missing_pairs, "wait_for_quiet_s": 600}
    extended = quick_client.post(f"/v1/studies/{busy_study['study_id']}:extend", json=more).json()
    assert extended["spec"]["wait_for_quiet_s"] == 600
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{busy_study['study_id']}/best").json()
    assert (result["verdict"], result["too_busy"]) == ("confirmed", None)
    best = quick_client.get("/v1/best", params=ASK).json()
    assert best["study_id"] == busy_study["study_id"] and best["verdict"] == "confirmed"


@pytest.mark.wide_on_postgres
def test_too_busy_is_served_only_to_those_who_accept_low_confidence(client):
    _, study = studied(client, bursts())
    low = {"lowest_confidence": "low"}
    for match in ("nearest", "exact"):
        rejected = client.get("/v1/best", params=ASK | {"match": match})
        assert (rejected.status_code, rejected.json()["code"]) == (409, "too_busy")
        assert study["study_id"] in rejected.json()["detail"] and "lowest_confidence=low" in rejected.json()["detail"]
    best = client.get("/v1/best", params=ASK | low).json()
    assert (best["verdict"], best["confidence"]["level"]) == ("too_busy", "low")
    assert "clang on 0.9 cores" in best["confidence"]["reasons"][0] and best["too_busy"]["disturbed_runs"] > 0
    by_key = {"target_key": best["target_key"]}
    assert client.get("/v1/best", params=by_key).json()["code"] == "too_busy"
    assert client.get("/v1/best", params=by_key | low).status_code == 200
    launch = client.get("/v1/best", params=ASK | low | {"format": "launch.sh"}).text
    assert "(verdict too_busy: no candidate is shown to be faster on a quiet machine)" in launch
    near = ASK | {"workload": '{"sequence_length": 64, "global_batch": 16}'}
    assert client.get("/v1/best", params=near).json()["code"] == "unknown_best"
    for batch, status in ((8, 200), (16, 200)):
        given = near | low | {"workload": f'{{"sequence_length": 64, "global_batch": {batch}}}'}
        assert client.get("/v1/best", params=given).status_code == status


def remedy_of(client):
    rejected = client.get("/v1/best", params=ASK)
    assert (rejected.status_code, rejected.json()["code"]) == (409, "too_busy")
    return rejected.json()["detail"]


def extend_and_cancel(client, url):
    client.post(f"{url}:extend", json={"add_trials": 2}).raise_for_status()
    client.post(f"{url}:cancel").raise_for_status()


def use_up_pairs(client, url):
    most = client.get(url).json()["spec"]["budget"]["max_pairs"]
    client.post(f"{url}:extend", json={"add_pairs": MOST_PAIRS - most}).raise_for_status()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (extend_and_cancel, "study_ended"),
        (lambda client, url: client.delete(url).raise_for_status(), "study_deleted"),
        (use_up_pairs, "invalid_request"),
    ],
    ids=["cancelled", "deleted", "no pair left"],
)
def test_where_no_pair_can_be_added_the_remedy_is_another_study(quick_client, busy_study, change, code):
    SimulatedWorker(quick_client).register()
    assert "(add_pairs, wait_for_quiet_s)" in remedy_of(quick_client)
    url = f"/v1/studies/{busy_study['study_id']}"
    change(quick_client, url)
    assert "(:clone, wait_for_quiet_s)" in remedy_of(quick_client)
    assert quick_client.post(f"{url}:extend", json={"add_pairs": 1}).json()["code"] == code
    cloned = quick_client.post(f"{url}:clone", json={"wait_for_quiet_s": 600})
    assert cloned.status_code == 201, cloned.text


def test_the_remedy_for_a_disturbed_search_is_no_pair(context):
    busy = BusyMachine(rests_on="search", runs=8, disturbed_runs=8, uneven_pairs=0, missing_runs=8)
    answer = BestConfig.model_construct(study_id="s", verdict=Verdict.TOO_BUSY, too_busy=busy)
    with pytest.raises(Conflict, match=r"quiet machine .*:clone, wait_for_quiet_s"):
        reject_too_busy(context, answer, ConfidenceLevel.MEDIUM)


def test_resolving_does_not_start_one_study_after_the_other_on_a_busy_machine(quick_client, busy_study):
    asked = {"study": SPEC | {"cluster": CLUSTER.model_dump()}}
    for _ in range(2):
        rejected = quick_client.post("/v1/best:resolve", json=asked)
        assert (rejected.status_code, rejected.json()["code"]) == (409, "too_busy")
    answer = quick_client.post("/v1/best:resolve", json=asked | {"lowest_confidence": "low"})
    assert (answer.status_code, answer.json()["best"]["verdict"]) == (200, "too_busy")
    assert len(quick_client.get("/v1/studies").json()["studies"]) == 1


def test_too_busy_replaces_no_other_studys_answer_and_is_replaced_by_any(quick_client, busy_study):
    _, clear = studied(quick_client, beside(lambda: 0.0))
    assert quick_client.get("/v1/best", params=ASK).json()["study_id"] == clear["study_id"]
    _, busy = studied(quick_client, bursts(5))
    best = quick_client.get("/v1/best", params=ASK).json()
    assert best["study_id"] == clear["study_id"]
    assert newest_decision(quick_client, best["target_key"])["note"] == "the machine was too busy"
    page = quick_client.get(f"/studies/{busy['study_id']}").text
    assert "the current recommendation stays" in page and "recommendation is faster" not in page


def test_another_studys_answer_is_called_faster_only_than_undisturbed_runs(quick_client):
    _, clear = studied(quick_client, beside(lambda: 0.0))
    key = quick_client.get("/v1/best", params=ASK).json()["target_key"]
    loads = iter([0.0] * 20)
    _, loaded = studied(quick_client, beside(lambda: next(loads, 1.0)))
    assert (
        loaded["result"]["verdict"] == "confirmed"
        and loaded["result"]["final_comparison"]["disturbed_counted_runs"] > 0
    )
    decision = newest_decision(quick_client, key)
    assert decision["action"] == "kept" and "may be faster than measured" in decision["note"]
    recommended = quick_client.get("/v1/best", params=ASK).json()
    assert recommended["study_id"] == clear["study_id"], "a quiet machine's answer stays"


def test_pages_of_a_too_busy_study_say_it_first(quick_client, busy_study):
    text = quick_client.get(f"/studies/{busy_study['study_id']}").text
    sentence = text.split('<p class="sentence">')[1].split("</p>")[0]
    assert sentence.startswith("Too busy: no candidate is shown to be faster on a quiet machine. ")
    assert "Other programs disturbed the runs" in sentence and "clang on 0.9 cores" in sentence
    assert "too busy" in quick_client.get("/").text
    assert "too_busy" in quick_client.get(f"/studies/{busy_study['study_id']}/export?which=best").text
    box = text.split("<h2>Recommendation")[1].split("</section>")[0]
    assert "for now, low confidence</span>" in box and "recommended</span>" not in box
    assert "no candidate is shown to be faster" in box and "recommended as the fastest known" not in box

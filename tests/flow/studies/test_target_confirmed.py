"""Studies on the target itself, which confirm a projection or change it."""

import json
from itertools import chain, repeat

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from tests.support.service.scenarios import WORKLOAD, answered_study, tune
from tests.support.service.simulated_worker import CLUSTER, SimulatedWorker, measurement
from tests.support.service.target_comparisons import (
    THERE,
    choices,
    confirming_request,
    projected_study,
    read,
    run_there,
    target_question,
)


@pytest.fixture
def sqlite_start(request, sqlite_start, sqlite_after):
    """Begin with the projected study where a test names it."""
    return sqlite_after(projected_study) if "projected" in request.fixturenames else sqlite_start


@pytest.fixture
def projected(quick_client):
    """Study with a projection to four nodes, which the service's database begins with."""
    return read(quick_client, answered_study(quick_client))


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
    request = confirming_request(quick_client, projected) | {"budget": {"max_trials": 2, "max_pairs": 7}}
    second, speeds = TrialConfig.model_validate(request["baseline"]), chain((1100.0, 900.0), repeat(1100.0))

    def behave(_lease, task):
        """The first choice loses its first pair and wins the others, whichever of the two runs first."""
        return measurement(1000.0 if task.config == second else next(speeds))

    worker = SimulatedWorker(quick_client, behave=behave, cluster=THERE)
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

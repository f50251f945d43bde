"""Predicted against measured is kept with every trial, what was measured corrects the next prediction, and an end near
the edge of memory counts only when it happens twice."""

import pytest
from sqlalchemy import create_engine, text

from shardtune.api_schemas.access.keys import Scope
from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.service.http.computed_answers import computed
from shardtune.service.http.errors import Invalid
from shardtune.service.http.idempotent_requests import NO_KEY
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS
from shardtune.tuner.prediction.learning import predict_trial
from shardtune.tuner.prediction.traced_shape import of_study
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import (
    CLUSTER,
    MODEL_SUMMARY,
    SPEC,
    SimulatedWorker,
    measurement,
    speed_of,
    well,
)

ONE = {"budget": {"max_trials": 1}}
"""One measured trial teaches, whatever becomes of its study."""


def run_study(client, behave, **changes):
    worker = SimulatedWorker(client, behave=behave).register()
    study_id = client.post("/v1/studies", json=SPEC | changes).json()["study_id"]
    worker.work()
    return client.get(f"/v1/studies/{study_id}/trials").json()["trials"]


def slow_machine(lease, task):
    """Everything takes three times as long as predicted, and a quarter more memory."""
    shape = of_study(task.model, MODEL_SUMMARY)
    prediction = predict_trial(shape, task.workload, task.cluster, task.config, NO_CALIBRATIONS)
    return measurement(prediction.tokens_per_s_per_gpu / 3, peak_gib=prediction.memory_gib * 1.25)


@pytest.mark.wide_on_postgres
def test_each_trial_keeps_its_prediction_and_teaches_the_next(client):
    trials = run_study(client, slow_machine)
    created = [trial["prediction"] for trial in trials]
    assert [prediction["speed_calibrated_on"] for prediction in created] == list(range(len(trials)))
    assert [prediction["memory_calibrated_on"] for prediction in created] == list(range(len(trials)))
    for trial, item in zip(trials, created, strict=True):
        assert item["low_memory_gib"] < item["memory_gib"] < item["high_memory_gib"]
        ratio = item["tokens_per_s_per_gpu"] / trial["tokens_per_s_per_gpu"]
        assert trial["predicted_over_measured_speed"] == pytest.approx(ratio)
    ratios = [
        (trial["predicted_over_measured_speed"], trial["predicted_over_measured_memory"])
        for trial in (trials[0], trials[-1])
    ]
    assert ratios[0] == pytest.approx((3, 0.8)) and ratios[1] == pytest.approx((1, 0.95), rel=0.05)


def test_what_one_study_measured_counts_for_the_next_on_the_same_fingerprint(quick_client):
    before = run_study(quick_client, well, **ONE)
    after = run_study(quick_client, well, **ONE)
    assert after[0]["prediction"]["speed_calibrated_on"] == len(before)


def test_a_stored_run_that_cannot_be_read_is_left_out_with_a_line_in_the_log(open_service, sqlite_url, caplog):
    before = run_study(open_service(sqlite_url), well, budget={"max_trials": 2, "max_pairs": 7})
    oldest = "(SELECT id FROM runs WHERE purpose = 'search' ORDER BY created_at, id LIMIT 1)"
    with create_engine(sqlite_url).begin() as connection:
        connection.execute(text(f"UPDATE runs SET measurement = '{{\"speed\": 1}}' WHERE id = {oldest}"))
    after = run_study(open_service(sqlite_url), well, **ONE)
    assert after[0]["prediction"]["speed_calibrated_on"] == len(before) - 1
    assert len(after) == 1
    assert "teaches the predictor nothing" in caplog.text


def test_over_the_limit_by_a_hair_counts_when_it_happens_twice(quick_client):
    observed = []

    def hair(lease, task):
        observed.append(lease.trial_number)
        over = lease.trial_number == 0 or (lease.trial_number == 1 and observed.count(1) == 1)
        return measurement(speed_of(task.config), peak_gib=3.81 if over else 0.5)

    trials = run_study(quick_client, hair, budget={"max_trials": 2, "max_pairs": 7})
    assert trials[0]["state"] == "infeasible" and trials[1]["state"] == "complete"
    ends = [[attempt["end"] for attempt in trial["runs"][0]["attempts"]] for trial in trials[:2]]
    assert ends == [["over_limit", "over_limit"], ["over_limit", "complete"]]


def test_local_is_predicted_with_what_its_worker_measured_and_its_trials_taught(quick_client):
    def speed(**inventory):
        SimulatedWorker(quick_client, **inventory).register()
        answer = quick_client.post("/v1/predictions", json={"model": "llama-tiny", "cluster": "local"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["cluster"] == CLUSTER.model_dump()
        return answer.json()["predictions"][0]["speed"]

    assumed = speed()
    measured = speed(measured=MeasuredHardware(bf16_flops=1e9, fp32_flops=1e9, copy_bytes_per_s=1e9, launch_s=1e-5))
    assert measured["tokens_per_s_per_gpu"] < assumed["tokens_per_s_per_gpu"] / 5
    run_study(quick_client, slow_machine, **ONE)
    assert speed()["calibrated_on"] == 1


def test_what_workers_of_another_project_say_teaches_nothing(quick_client):
    """A worker says itself what its fingerprint is: a hostile one could give everybody's memory gate another scale."""
    admin = local_client(quick_client.app, headers=bearer(make_key(quick_client, "admin")))

    def member(project):
        return local_client(admin.app, headers=bearer(make_key(admin, *Scope, project=project)))

    mine, theirs = member("mine"), member("theirs")
    own = SimulatedWorker(mine, name="own").register()
    requested = {"model": "llama-tiny", "cluster": "local"}
    before = mine.post("/v1/predictions", json=requested).json()
    measured = MeasuredHardware(bf16_flops=1e3, fp32_flops=1e3, copy_bytes_per_s=1e3, launch_s=1.0)
    hostile = SimulatedWorker(theirs, name="hostile", measured=measured).register()

    def first_prediction(client, worker):
        study_id = client.post("/v1/studies", json=SPEC | ONE).json()["study_id"]
        worker.work()
        return client.get(f"/v1/studies/{study_id}/trials").json()["trials"][0]["prediction"]

    assert mine.post("/v1/predictions", json=requested).json() == before, "nor does what it says of its hardware"
    first_prediction(theirs, hostile)
    poisoned = first_prediction(mine, own)
    assert (poisoned["memory_calibrated_on"], poisoned["speed_calibrated_on"]) == (0, 0)
    assert first_prediction(theirs, hostile)["memory_calibrated_on"] == 1
    # What the operator's worker measured is the operator's word, whosever study it was.
    learnt = first_prediction(mine, own)["memory_calibrated_on"]
    shared = SimulatedWorker(admin, name="shared").register()
    first_prediction(theirs, shared)
    assert first_prediction(mine, own)["memory_calibrated_on"] == learnt + 2


PLAN = {"model": "llama-3.1-8b", "tokens": 1e12, "gpus": ["h100"], "counts": [8]}
MEASURED = {"gpu": "h100", "gpus": 8, "config": {"strategy": {"kind": "ddp"}}, "tokens_per_s_per_gpu": 9e3}
CLUSTER_OF_UNKNOWN = CLUSTER.model_dump() | {"device": "cuda", "gpu": "unheard-of"}


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v1/plans", PLAN | {"gpus": ["unheard-of"]}, ["gpus"]),
        ("/v1/plans", PLAN | {"measurements": [MEASURED, MEASURED | {"gpu": "unheard-of"}]}, ["measurements.1.gpu"]),
        ("/v1/predictions", {"model": "llama-tiny", "cluster": "8xunheard-of"}, ["cluster"]),
        ("/v1/predictions", {"model": "llama-tiny", "cluster": CLUSTER_OF_UNKNOWN}, ["cluster.gpu"]),
    ],
)
def test_an_error_names_the_field_as_the_request_does(quick_client, path, body, fields):
    answer = quick_client.post(path, json=body)
    assert answer.status_code == 422, answer.text[:500]
    assert [error["field"] for error in answer.json()["errors"]] == fields


def test_values_that_cannot_be_computed_with_are_named_by_their_fields(context):
    def overflow():
        raise OverflowError("math range error")

    with pytest.raises(Invalid, match="one of model, tokens is too large or too small") as rejected:
        computed(context, NO_KEY, overflow, ("model", "tokens"))
    assert [error.field for error in rejected.value.errors] == ["model", "tokens"]

"""A study's lengths of samples: stored as a histogram, sent to the worker, answered for them alone."""

import json

import pytest

from tests.support.service.scenarios import ASK, WORKLOAD
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

LENGTHS = [9, 30, 9, 64]


def with_data(**data):
    return SPEC | {"workload": SPEC["workload"] | {"data": data}}


def rejection(client, body):
    answer = client.post("/v1/studies", json=body)
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"][0]


def test_lengths_are_counted_and_sent_to_the_worker(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study = quick_client.post("/v1/studies", json=with_data(lengths=LENGTHS, layout="grouped")).json()
    expected = {"lengths": [[9, 2], [30, 1], [64, 1]], "layout": "grouped", "pad_to_multiple_of": 1}
    assert study["spec"]["workload"]["data"] == expected
    assert worker.lease().task.workload.data.model_dump(mode="json") == expected


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ({"lengths": []}, "workload.data.lengths", "has no samples"),
        ({"lengths": [-1]}, "workload.data.lengths", "below 2 tokens"),
        ({"lengths": [10**9]}, "workload.data.lengths", "above 4194304"),
        ({"lengths": [65]}, "workload.data.lengths", "raise sequence_length to 65"),
        (
            {"lengths": [9], "layout": "packed", "pad_to_multiple_of": 8},
            "workload.data.pad_to_multiple_of",
            "each row has sequence_length",
        ),
        ({"lengths": [9], "pad_to_multiple_of": 128}, "workload.data.pad_to_multiple_of", "raise sequence_length"),
    ],
)
def test_lengths_that_cannot_be_trained_are_rejected_with_their_field(quick_client, data, field, message):
    SimulatedWorker(quick_client).register()
    error = rejection(quick_client, with_data(**data))
    assert error["field"] == field and message in error["message"], error


def test_packed_samples_are_stored_and_sent_to_the_worker(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study = quick_client.post("/v1/studies", json=with_data(lengths=LENGTHS, layout="packed")).json()
    assert study["spec"]["workload"]["data"]["layout"] == "packed"
    assert worker.lease().task.workload.data.is_packed


def test_packed_samples_that_see_each_other_are_rejected_with_their_field(quick_client):
    SimulatedWorker(quick_client).register()
    model = {"model_type": "gpt_oss", "num_hidden_layers": 2}
    error = rejection(quick_client, with_data(lengths=LENGTHS, layout="packed") | {"model": model})
    assert error["field"] == "workload.data.layout" and "use layout 'grouped'" in error["message"], error


def test_own_code_gets_no_lengths(quick_client):
    SimulatedWorker(quick_client, own_scripts=("plain",)).register()
    error = rejection(quick_client, with_data(lengths=LENGTHS) | {"model": {"script": "plain"}})
    assert error["field"] == "workload.data" and "makes its batches itself" in error["message"]


def test_a_baseline_that_shares_samples_is_rejected(quick_client):
    SimulatedWorker(quick_client).register()
    baseline = {"strategy": {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}}
    error = rejection(quick_client, with_data(lengths=LENGTHS) | {"baseline": baseline})
    assert error["field"].startswith("baseline") and "workload.data" in error["message"]


@pytest.mark.answered
def test_an_answer_for_samples_of_one_length_is_never_given_for_several(quick_client):
    asked = ASK | {"workload": json.dumps(WORKLOAD | {"data": {"lengths": LENGTHS}}), "lowest_confidence": "low"}
    answer = quick_client.get("/v1/best", params=asked)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_best")


def test_predictions_count_the_samples_own_tokens(quick_client):
    request = {"model": "llama-3.1-8b", "cluster": "8xh100", "top": 1, "data": {"lengths": [100, 4096]}}
    table = quick_client.post("/v1/predictions", json=request).json()
    assert table["sequence_length"] == 4096
    assert table["fastest"][0]["speed"]["padding_fraction"] is not None
    bad = quick_client.post("/v1/predictions", json=request | {"sequence_length": 512})
    assert bad.status_code == 422 and "raise sequence_length to 4096" in bad.text


def test_the_page_of_a_new_study_takes_lengths(quick_client):
    form = {
        "model": "llama-3.1-8b",
        "hardware": "H100-SXM-80GB",
        "lengths": "[[100, 9], [4096, 1]]",
        "layout": "grouped",
    }
    page = quick_client.get("/new", params=form)
    assert page.status_code == 200 and "of the computed tokens is padding" in page.text
    wrong = quick_client.get("/new", params=form | {"lengths": "[1, 2"})
    assert "must be a JSON list" in wrong.text
    assert "is below 2 tokens" in quick_client.get("/new", params=form | {"lengths": "[1]"}).text

"""What a study should take: the page of a new study, the route and the command say it before anything runs."""

import json

import pytest

from shardtune.service.cli import main
from tests.support.service.page_reader import page
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

NAMED = SPEC | {"cluster": "8xh100", "budget": {"max_trials": 9}}


def test_the_route_estimates_a_named_cluster_and_the_live_worker(quick_client):
    cost = quick_client.post("/v1/predictions/study-cost", json=NAMED).json()
    assert cost["trials"] == {"low": 9.0, "high": 9.0} and cost["gpu_hours"]["high"] > cost["minutes"]["high"] / 60
    assert cost["expected_gain"]["low"] >= 1 and "9 trials" in cost["stops"][0]
    local = {**NAMED, "cluster": "local"}
    missing = quick_client.post("/v1/predictions/study-cost", json=local)
    assert (missing.status_code, missing.json()["code"]) == (422, "no_worker")
    SimulatedWorker(quick_client).register()
    assert "no worker is registered" in cost["no_worker"]
    assert quick_client.post("/v1/predictions/study-cost", json=local).json()["no_worker"] is None
    elsewhere = quick_client.post("/v1/predictions/study-cost", json=NAMED).json()["no_worker"]
    assert "is not offered by any live worker: registered: sim with" in elsewhere
    waiting = quick_client.post("/v1/predictions/study-cost", json=NAMED | {"wait_for_worker_s": 600.0})
    assert waiting.json()["no_worker"] is None
    assert quick_client.get("/v1/studies").json()["studies"] == [], "nothing is stored"


def test_a_study_that_would_be_rejected_gets_no_estimate(quick_client):
    wrong = {**NAMED, "workload": NAMED["workload"] | {"global_batch": 7}}
    answer = quick_client.post("/v1/predictions/study-cost", json=wrong)
    assert answer.status_code == 422 and "global_batch" in answer.text


def test_the_page_shows_it_beside_the_form_and_the_table_of_predict(quick_client):
    text = page(
        quick_client, "/new?model=llama-3.1-8b&hardware=H100-SXM5-80GB&size=3&global_batch=64&sequence_length=8192"
    )
    cost = text.split('id="cost"')[1].split("</dl>")[0]
    assert "GPU-hours" in cost and "validation runs" in cost and "the search ends after 14 trials" in cost
    asked = {"model": "llama-3.1-8b", "cluster": "8xh100", "sequence_length": 8192, "global_batch": 64, "top": 5}
    table = quick_client.post("/v1/predictions", json=asked).json()
    assert "at a global batch of 64 samples, compiled" in text and "equal within ± 2.2" in text
    for row in (*table["fastest"], *table["predictions"]):
        speed = f"{row['speed']['tokens_per_s_per_gpu']:,.0f}"
        assert row["description"] in text and (row["memory"]["verdict"] == "does not fit" or speed in text), row


def test_the_command_prints_it_and_starts_nothing(tmp_path, capsys):
    path = tmp_path / "study.json"
    path.write_text(json.dumps({key: NAMED[key] for key in ("model", "workload", "cluster", "budget")}))
    for as_json in (False, True):
        arguments = [
            "tune",
            str(path),
            "--cost",
            "--state-dir",
            str(tmp_path / "state"),
            *(["--json"] if as_json else []),
        ]
        try:
            main(arguments)
        except SystemExit as ended:
            assert not ended.code
        printed = capsys.readouterr().out
        assert json.loads(printed)["trials"]["high"] == 9 if as_json else printed.startswith("trials      9, then")
    assert not (tmp_path / "state").exists() and not (tmp_path / "best").exists()


def test_the_cost_of_a_study_with_muon_names_backends_that_train_with_it(quick_client):
    study = NAMED | {"workload": NAMED["workload"] | {"optimizer": "muon"}}
    gain = quick_client.post("/v1/predictions/study-cost", json=study).json()["expected_gain"]
    assert all(gain[side].startswith(("DDP", "FSDP2")) for side in ("fastest", "baseline"))


def test_the_cost_of_a_model_that_cannot_be_predicted_is_not_known(quick_client):
    cost = quick_client.post("/v1/predictions/study-cost", json=NAMED | {"model": "deepseek-v3"})
    assert cost.status_code == 200 and cost.json()["expected_gain"] is None and cost.json()["minutes"] is None


@pytest.mark.answered
def test_the_page_predicts_for_a_worker_with_what_was_measured_on_it(quick_client):
    asked = {"model": "llama-tiny", "cluster": "local", "sequence_length": 64, "global_batch": 16, "top": 5}
    table = quick_client.post("/v1/predictions", json=asked).json()
    text = page(quick_client, "/new")
    for row in table["fastest"]:
        assert f"{row['speed']['tokens_per_s_per_gpu']:,.0f}" in text, "one rule for the page and the API"
    study = SPEC | {"workload": {"sequence_length": 64, "global_batch": 16}, "budget": {"max_trials": 14}}
    cost = quick_client.post("/v1/predictions/study-cost", json=study).json()
    assert f"predicted {cost['expected_gain']['value']:.2f}x" in text

"""The webhook for TrainJobs beside a real service: measured before predicted, and unchanged jobs while it is away."""

import json
import socket
import time

import httpx
import pytest
from starlette.testclient import TestClient

from shardtune.service.client import ServiceClient
from shardtune.service.kubeflow import webhook
from shardtune.service.kubeflow.recommendation import Recommender
from shardtune.tuner.prediction import catalogue
from tests.support.service.simulated_worker import SimulatedWorker
from tests.support.values.train_jobs import patched, review, train_job

OFFERED = ["1xh100", "8xh100"]
TINY = {"sequence_length": 64, "global_batch": 64}


@pytest.fixture
def admitted(http):
    """Make a job as Kubernetes would store it after the webhook that asks the service of the test."""
    with ServiceClient(str(http.base_url), patience_s=0) as client:
        yield _admission(client)


def _admission(client, offered=OFFERED, within_s=20.0):
    webhook_client = TestClient(webhook.create_app(offered, Recommender(client, within_s)))

    def admit(job):
        response = webhook_client.post("/admit", content=review(job))
        assert response.status_code == 200, response.text
        assert response.json()["response"]["allowed"]
        return patched(job, response.json()), response.json()["response"].get("warnings", [""])[0]

    return admit


def test_without_a_study_the_smallest_cluster_that_surely_fits_is_recommended(admitted):
    job, warning = admitted(train_job())
    # 8 billion parameters with AdamW need 128 GB: one H100 is too small.
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["numProcPerNode"]) == (1, 8)
    assert "predicted for 8xh100, not measured" in warning
    assert "predicted for 8xh100" in job["metadata"]["annotations"]["shardtune.io/recommendation"]
    small, _ = admitted(train_job(model="llama-tiny", workload=json.dumps(TINY)))
    assert small["spec"]["trainer"]["numProcPerNode"] == 1


def test_a_measured_answer_goes_before_a_prediction(admitted, http):
    cluster = catalogue.parse_cluster("8xh100")
    study_id = tune_on(http, cluster)
    job, warning = admitted(train_job(model="llama-tiny", workload=json.dumps(TINY)))
    assert f"measured on 8xh100 by study {study_id}" in warning
    assert job["spec"]["trainer"]["numProcPerNode"] == 8
    result = http.get(f"/v1/studies/{study_id}").json()["result"]
    chosen = json.loads(job["metadata"]["annotations"]["shardtune.io/configuration"])
    assert chosen["strategy"]["kind"] == result["best"]["config"]["strategy"]["kind"]


def tune_on(http, cluster):
    worker = SimulatedWorker(http, cluster=cluster).register()
    spec = {"model": "llama-tiny", "workload": TINY, "cluster": "8xh100", "budget": {"max_trials": 3}}
    study_id = http.post("/v1/studies", json=spec).raise_for_status().json()["study_id"]
    worker.work()
    return study_id


def test_nothing_that_fits_and_an_unknown_model_change_nothing(admitted):
    large = train_job(model="llama-3.1-405b")
    job, warning = admitted(large)
    assert job == large and "nothing is predicted to fit surely on 1xh100 or 8xh100" in warning
    unknown = train_job(model="llama-3-8b")
    job, warning = admitted(unknown)
    assert job == unknown and "llama-3.1-8b" in warning, "near misses are named"


def test_a_service_that_is_away_changes_nothing_and_holds_nobody_up():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = "http://{}:{}".format(*unused.getsockname())
        with ServiceClient(url, patience_s=0, timeout=httpx.Timeout(5, connect=0.5)) as client:
            started_s = time.monotonic()
            job, warning = _admission(client)(train_job())
            assert job == train_job() and "the service does not answer" in warning
            # The connection is refused or its time ends: no answer of the service is waited for.
            assert time.monotonic() - started_s < 30


def test_a_body_that_is_no_review_or_too_long_is_rejected(http):
    with ServiceClient(str(http.base_url), patience_s=0) as client:
        app = TestClient(webhook.create_app(OFFERED, Recommender(client, 5)))
        assert app.get("/healthz").text == "ok"
        assert app.post("/admit", content=b"{}").status_code == 400
        assert app.post("/admit", content=b" " * (9 * 2**20)).status_code == 413

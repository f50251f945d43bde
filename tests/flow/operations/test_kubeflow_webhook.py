"""The webhook for TrainJobs beside a real service: measured before predicted, and unchanged jobs while it is away."""

import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from starlette.testclient import TestClient

from shardtune.service.cli.commands import kubeflow
from shardtune.service.cli.parent_death import dies_with_parent
from shardtune.service.client import ServiceClient
from shardtune.service.kubeflow import webhook
from shardtune.service.kubeflow.recommendation import Recommender
from shardtune.tuner.prediction import catalogue
from tests.support.processes.certificates import Authority
from tests.support.processes.stack import free_port, until
from tests.support.service.simulated_worker import SimulatedWorker
from tests.support.values.train_jobs import patched, review, train_job

OFFERED = ["1xh100", "8xh100"]
TINY = {"sequence_length": 64, "global_batch": 64}


@pytest.fixture
def admitted(http):
    """Make a job as Kubernetes would store it after the webhook that asks the service of the test."""
    with ServiceClient(str(http.base_url), patience_s=0) as client:
        # A machine that is busy with other tests may take longer than a service of its own.
        yield _admission(Recommender(client, 120.0, away_after_s=60.0))


def _admission(recommender):
    webhook_client = TestClient(webhook.create_app(OFFERED, recommender))

    def admit(job):
        response = webhook_client.post("/admit", content=review(job))
        assert response.status_code == 200, response.text
        assert response.json()["response"]["allowed"]
        return patched(job, response.json()), response.json()["response"].get("warnings", [""])[0]

    return admit


def test_without_a_study_the_smallest_cluster_that_is_about_as_fast_per_gpu_is_recommended(admitted):
    job, warning = admitted(train_job())
    # 8 billion parameters with AdamW need 128 GB: one H100 would offload, far slower.
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


@pytest.mark.parametrize("port", ["closed", "unanswered", "silent", "slow"])
def test_a_service_that_is_away_changes_nothing_and_holds_nobody_up(port):
    with ExitStack() as stack:
        unused = stack.enter_context(socket.socket())
        unused.bind(("127.0.0.1", 0))
        if port == "silent":
            # The kernel accepts these connections, and nobody ever reads them.
            unused.listen(64)
        if port == "slow":
            unused.listen(64)
            stack.enter_context(dripping(unused))
        if port == "unanswered":
            # Connections that nobody accepts: the next one gets no answer, as from a host that is gone.
            unused.listen(0)
            for waiting in [stack.enter_context(socket.socket()) for _ in range(4)]:
                waiting.setblocking(False)
                waiting.connect_ex(unused.getsockname())
        url = "http://{}:{}".format(*unused.getsockname())
        with ServiceClient(url, patience_s=0, timeout=kubeflow.service_timeout(5)) as client:
            admit, seconds = _admission(Recommender(client, 120.0)), []
            for _ in range(3):
                started_s = time.monotonic()
                job, warning = admit(train_job())
                seconds.append(time.monotonic() - started_s)
                assert job == train_job() and "the service does not answer" in warning
    # The quickest of three: a busy machine may hold up any of them.
    assert min(seconds) <= 1, seconds


@contextmanager
def dripping(listener):
    """Answer each connection by one byte after the other, as a service on a host that has hardly any time left."""
    over = threading.Event()

    def drip(connection):
        with connection, suppress(OSError):
            while not over.wait(0.1):
                connection.sendall(b"H")

    def accept():
        with suppress(OSError):
            while not over.is_set():
                threading.Thread(target=drip, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        # Closing it would not wake `accept`.
        listener.shutdown(socket.SHUT_RDWR)


def test_a_body_that_is_no_review_or_too_long_is_rejected(http):
    with ServiceClient(str(http.base_url), patience_s=0) as client:
        app = TestClient(webhook.create_app(OFFERED, Recommender(client, 5)))
        assert app.get("/healthz").text == "ok"
        assert app.post("/admit", content=b"{}").status_code == 400
        assert app.post("/admit", content=b" " * (9 * 2**20)).status_code == 413


def test_the_command_answers_over_tls_whom_it_knows(tmp_path, http):
    authority = Authority(tmp_path)
    server, api_server, port = authority.issue("server"), authority.issue("api-server"), free_port()
    options = {
        "cluster": "8xh100",
        "service": str(http.base_url),
        "port": str(port),
        "certificate": str(server.certificate),
        "private-key": str(server.key),
        "client-ca": str(authority.certificate),
        "answer-within": "25",
    }
    command = [
        sys.executable,
        "-m",
        "shardtune",
        "kubeflow-webhook",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    trusted = ssl.create_default_context(cafile=authority.certificate)
    known = ssl.create_default_context(cafile=authority.certificate)
    known.load_cert_chain(api_server.certificate, api_server.key)
    with subprocess.Popen(dies_with_parent(command), stderr=subprocess.PIPE, text=True) as process:
        try:
            address = f"https://127.0.0.1:{port}"
            with httpx.Client(base_url=address, verify=known, timeout=60) as client:
                until(lambda: is_alive(client), 120, "the webhook answers")
                # The first request to a service takes longest.
                http.get("/readyz").raise_for_status()
                answer = client.post("/admit", content=review(train_job())).json()
            assert patched(train_job(), answer)["spec"]["trainer"].get("numProcPerNode") == 8, answer
            with httpx.Client(base_url=address, verify=trusted) as stranger, pytest.raises(httpx.TransportError):
                stranger.get("/healthz")
        finally:
            process.terminate()
        assert 'recommended for "team-a/train": predicted for 8xh100' in process.stderr.read().replace("\\", "")


def is_alive(client):
    try:
        return client.get("/healthz").text == "ok"
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cluster=8xunobtainium"], "--cluster (8xunobtainium)"),
        (["--cluster=8xh100", "--certificate=absent.pem"], "--certificate (absent.pem) is no file"),
        (["--cluster=8xh100", "--client-ca=pyproject.toml"], "needs --certificate and --private-key"),
        (["--cluster=8xh100", "--certificate=pyproject.toml"], "--private-key is missing"),
        (["--cluster=8xh100", "--key-file=absent.key"], "absent.key"),
        ([], "--cluster"),
    ],
)
def test_wrong_options_are_named_with_the_remedy(options, message, run):
    code, text = run("kubeflow-webhook", *options, as_json=False)
    assert code == 2 and message in text

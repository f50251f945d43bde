"""Behaviour of the client when the service does not answer, defers or rejects."""

import random

import httpx
import pytest

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import Heartbeat, LeaseRequest, Report
from shardtune.workers.agent.client import WorkerClient, backoff_s, call_patiently
from shardtune.workers.agent.client_errors import LeaseLost, RequestRejected, Unreachable
from tests.support.service.wrong_compression import wrongly_compressed
from tests.support.workers.worker_fakes import FakeService, make_task

SESSION = "session-1234"
REPORT = Report(protocol_version=1, session=SESSION, attempt=1, gpu_seconds=1.0)
NO_PAUSE = [0.0] * 50


@pytest.fixture
def serve():
    """Starts fake services; all are closed at the end."""
    started = []

    def start(*answers, port=0):
        remaining_answers = list(answers)
        started.append(
            FakeService(
                lambda *_: remaining_answers.pop(0) if len(remaining_answers) > 1 else remaining_answers[0], port
            )
        )
        return started[-1]

    yield start
    for service in started:
        service.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (409, LeaseLost),
        (404, LeaseLost),
        (422, RequestRejected),
        (401, RequestRejected),
        (503, Unreachable),
        (429, Unreachable),
    ],
)
def test_status_decides_whether_to_try_again_to_stop_or_to_give_up(serve, status, error):
    service = serve((status, {"detail": "because"}))
    with pytest.raises(error, match="because"):
        WorkerClient(service.url).report("r1", REPORT)


def test_an_answer_that_makes_no_sense_is_tried_again(serve):
    service = serve((200, {"hello": "proxy"}), (200, {"applied": True}))
    client = WorkerClient(service.url)
    assert call_patiently(lambda: client.report("r1", REPORT), lambda: False, pauses_s=iter(NO_PAUSE)).applied


def test_an_answer_that_a_proxy_compressed_wrongly_is_tried_again():
    client, transport = WorkerClient("http://service"), httpx.MockTransport(lambda _: wrongly_compressed())
    client._http = httpx.Client(base_url="http://service", transport=transport)
    with pytest.raises(Unreachable, match="DecodingError"):
        client.report("r1", REPORT)


def test_a_report_survives_a_restarted_service(serve):
    first = serve((500, {"detail": "going down"}))
    client = WorkerClient(first.url)
    observed = []

    def noticed(error):
        observed.append(error)
        if len(observed) == 1:
            first.close()
        elif len(observed) == 3:
            serve((200, {"applied": True}), port=first.port)

    assert call_patiently(lambda: client.report("r1", REPORT), lambda: False, noticed, iter([0.05] * 50)).applied
    assert len(observed) == 3


def test_what_is_finished_is_sent_once_even_when_asked_to_stop(serve):
    service = serve((200, {"applied": True}))
    client = WorkerClient(service.url)
    assert call_patiently(lambda: client.report("r1", REPORT), give_up=lambda: True).applied


def test_giving_up_ends_the_repeating():
    client = WorkerClient("http://127.0.0.1:9")
    assert call_patiently(lambda: client.report("r1", REPORT), give_up=lambda: True) is None


def test_a_rotated_key_is_read_from_its_file_again(tmp_path):
    def answer(*_):
        return (200, {"applied": True}) if service.keys[-1] == f"Bearer {valid[-1]}" else (401, {"detail": "revoked"})

    file, valid = tmp_path / "key", ["old"]
    file.write_text("old\n")
    service = FakeService(answer)
    try:
        client = WorkerClient(service.url, keys=KeySource(file=file))
        client.report("r1", REPORT)
        valid.append("new")
        with pytest.raises(Unreachable, match="revoked; waiting for another key in"):
            client.report("r1", REPORT)
        file.write_text("")
        with pytest.raises(Unreachable):
            client.report("r1", REPORT)
        file.write_text("new")
        assert client.report("r1", REPORT).applied
        assert service.keys[-2:] == ["Bearer old", "Bearer new"]
    finally:
        service.close()


def test_a_key_that_was_never_accepted_is_rejected_at_once(serve, tmp_path):
    file = tmp_path / "key"
    file.write_text("wrong")
    service = serve((401, {"detail": "unknown"}))
    for keys in (KeySource(file=file), KeySource("wrong"), None):
        with pytest.raises(RequestRejected, match="unknown"):
            WorkerClient(service.url, keys=keys).report("r1", REPORT)
    assert service.keys == ["Bearer wrong", "Bearer wrong", ""]


def test_the_key_is_taken_out_of_the_environment():
    environment = {"SHARDTUNE_API_KEY": " secret ", "SHARDTUNE_API_KEY_FILE": "/nowhere", "HOME": "/"}
    assert KeySource.take_from_environment(environment).key == "secret"
    assert environment == {"HOME": "/"}
    with pytest.raises(ValueError, match="cannot be read"):
        KeySource.take_from_environment({"SHARDTUNE_API_KEY_FILE": "/nowhere"})


def test_a_proxy_of_the_environment_is_shown_nothing(serve, monkeypatch):
    service, proxy = serve((204, None)), serve((204, None))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    lease_request = LeaseRequest(protocol_version=PROTOCOL_VERSION, session=SESSION)
    WorkerClient(service.url, keys=KeySource("secret")).lease(lease_request)
    assert (proxy.keys, service.keys) == ([], ["Bearer secret"])
    WorkerClient(service.url, keys=KeySource("secret"), proxy=proxy.url).lease(lease_request)
    assert proxy.keys == ["Bearer secret"], "the one that is named counts"


@pytest.mark.parametrize("run_id", ["../../etc", "a/b", "..", "/tmp/x", "", "run 1", "-rf"])
def test_a_run_whose_name_is_no_folder_s_is_not_taken(serve, run_id):
    """A worker makes a folder of it, and removes what is there."""
    lease = {
        "run_id": run_id,
        "attempt": 1,
        "study_id": "s",
        "trial_number": 0,
        "task": make_task().model_dump(mode="json"),
    }
    lease |= {"lease_s": 20, "heartbeat_s": 1, "deadline_s": 30, "no_progress_s": 30}
    lease_request = LeaseRequest(protocol_version=PROTOCOL_VERSION, session=SESSION)
    with pytest.raises(Unreachable, match="no Lease"):
        WorkerClient(serve((200, lease)).url).lease(lease_request)
    assert WorkerClient(serve((200, lease | {"run_id": "run-1"})).url).lease(lease_request).run_id == "run-1"


def test_no_work_is_none(serve):
    service = serve((204, None))
    assert WorkerClient(service.url).lease(LeaseRequest(protocol_version=1, session=SESSION)) is None


def test_every_call_carries_the_protocol_version(serve):
    service = serve((200, {"action": "continue", "lease_s": 20}))
    WorkerClient(service.url).heartbeat("r1", Heartbeat(protocol_version=1, session=SESSION, attempt=2))
    path, body = service.requests[0]
    assert path == "/v1/runs/r1/heartbeat"
    assert (body["protocol_version"], body["attempt"]) == (1, 2)


def test_pauses_grow_to_a_limit_and_differ():
    pauses = [pause for pause, _ in zip(backoff_s(0.2, 5.0, random.Random(0)), range(20), strict=False)]
    assert 0.1 <= pauses[0] <= 0.2
    assert all(2.5 <= pause <= 5.0 for pause in pauses[6:])
    assert len(set(pauses)) == len(pauses)

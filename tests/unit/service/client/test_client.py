"""The Python client: what it repeats, how long, and with which key."""

import httpx
import pytest

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.service.client import NoService, ServiceClient, ServiceRejected, ServiceUnreachable
from tests.support.service.wrong_compression import wrongly_compressed

SPEC = StudySpec.model_validate({"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 8}})
BUSY = {"code": "quota_requests", "detail": "come again"}


class Answers(httpx.BaseTransport):
    """Gives one answer after the other, the last one again and again."""

    def __init__(self, *answers):
        self.left, self.got, self.keys = list(answers), [], []

    def handle_request(self, request):
        self.got.append(request)
        self.keys.append(request.headers.get("authorization"))
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **options):
        return ServiceClient("http://service", transport=self, **options)


def later(status=429, **headers):
    return httpx.Response(status, json=BUSY, headers=headers)


def events(*numbers, is_last=False):
    actual = [
        {"study_id": "s", "number": n, "type": "trial.created", "created_at": "2026-01-01T00:00:00Z", "data": {}}
        for n in numbers
    ]
    return httpx.Response(200, json={"events": actual, "next_after": max(numbers, default=0), "is_last": is_last})


def test_later_is_repeated_under_the_same_name():
    answers = Answers(later(**{"retry-after": "0"}), later(503, **{"retry-after": "0"}), httpx.Response(200, json={}))
    with pytest.raises(NoService):
        answers.client().create_study(SPEC)
    names = {request.headers["idempotency-key"] for request in answers.got}
    assert len(answers.got) == 3 and len(names) == 1 and len({request.content for request in answers.got}) == 1


@pytest.mark.parametrize(("status", "headers"), [(429, {"retry-after": "3600"}), (503, {})])
def test_patience_has_an_end(status, headers):
    answers = Answers(later(status, **headers))
    with pytest.raises(ServiceRejected, match="come again") as rejected:
        answers.client(patience_s=0.1).study("s")
    assert rejected.value.status == status and len(answers.got) == 1


def test_a_client_without_patience_repeats_nothing_where_no_pause_is_asked_for():
    """A webhook's thread would ask a proxy that answers `Retry-After: 0` again and again, without end."""
    answers = Answers(later(503, **{"retry-after": "0"}), httpx.Response(200, json={}))
    with pytest.raises(ServiceRejected, match="come again"):
        answers.client(patience_s=0).check_ready()
    assert len(answers.got) == 1


def test_other_rejections_are_not_repeated():
    for status in (400, 409, 422, 500):
        answers = Answers(later(status, **{"retry-after": "0"}))
        with pytest.raises(ServiceRejected):
            answers.client().study("s")
        assert len(answers.got) == 1


def test_a_rotated_key_is_read_from_its_file_again(tmp_path):
    file = tmp_path / "key"
    file.write_text("old\n")
    answers = Answers(httpx.Response(200, json={}), httpx.Response(401, json={}), httpx.Response(200, json={}))
    client = answers.client(api_key=KeySource(file=file))
    client._calls.send("GET", "/v1/studies/s")
    file.write_text("new\n")
    client._calls.send("GET", "/v1/studies/s")
    assert answers.keys == ["Bearer old", "Bearer old", "Bearer new"]


def test_a_key_that_stays_wrong_is_rejected(tmp_path):
    (tmp_path / "key").write_text("wrong")
    answers = Answers(httpx.Response(401, json={"code": "key_invalid"}))
    for source in (KeySource("wrong"), KeySource(file=tmp_path / "key")):
        with pytest.raises(ServiceRejected):
            answers.client(api_key=source).study("s")
    assert len(answers.got) == 2


def test_waiting_survives_a_restart_and_ends_with_its_time():
    away = httpx.ConnectError("rejected")
    answers = Answers(events(1), httpx.Response(404, json={"code": "unknown_study"}))
    with pytest.raises(ServiceRejected):
        answers.client().wait("s", poll_s=0)
    with pytest.raises(TimeoutError, match="had not ended"):
        Answers(events()).client().wait("s", timeout_s=0.05, poll_s=0.01)
    with pytest.raises(ServiceUnreachable):
        Answers(away).client(patience_s=0.05).wait("s", poll_s=0.01)
    back = Answers(away, away, httpx.Response(404, json={"code": "unknown_study"}))
    with pytest.raises(ServiceRejected):
        back.client(patience_s=60).wait("s", poll_s=0)
    assert len(back.got) == 3


def test_an_answer_that_a_proxy_compressed_wrongly_is_no_answer_of_the_service():
    client = Answers(wrongly_compressed(), wrongly_compressed()).client(patience_s=0)
    assert not client.ready()
    with pytest.raises(ServiceUnreachable, match="no answer from the service at http://service: Error -3"):
        client.study("s")


@pytest.mark.parametrize("content", [b"<html>", b'{"a": 1}', b"", b"[]"])
def test_an_answer_of_another_program_is_an_error_of_the_client(content):
    client = Answers(httpx.Response(200, content=content)).client()
    for ask in (lambda: client.study("s"), client.studies, lambda: client.trials("s"), client.workers):
        with pytest.raises(NoService, match="what answered at http://service is no Shardtune service"):
            ask()


@pytest.mark.parametrize("address", ["http://u:SECRETPW@127.0.0.1:9", "http://h:SECRETPW"])
def test_an_address_with_a_password_is_rejected_without_showing_it(address):
    with pytest.raises(ValueError, match=r"service .*write it like") as rejected:
        ServiceClient(address)
    assert "SECRETPW" not in str(rejected.value)


def test_waiting_for_a_busy_service_ends_with_the_time_of_the_waiting(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(TimeoutError, match="had not ended after 2 s"):
        Answers(later(503)).client().wait("s", timeout_s=2, poll_s=0.1)
    assert now[0] == pytest.approx(2)
    with pytest.raises(ServiceRejected):
        Answers(later(503)).client().wait("s", timeout_s=600)

"""The recommender: what it takes from a service, and when it stops asking."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.service.client import ServiceClient
from shardtune.service.kubeflow.recommendation import Recommender
from shardtune.service.kubeflow.wish import NotRecommendable, Wish
from shardtune.tuner.prediction import catalogue
from tests.support.values.train_jobs import WORKLOAD

WISH = Wish("llama-3.1-8b", WORKLOAD, ("8xh100",))


def answer_of(confidence: str) -> Any:
    """Client of a service with one measured answer of this confidence, and without predictions that fit."""
    best = SimpleNamespace(
        confidence=SimpleNamespace(level=ConfidenceLevel(confidence)), verdict="confirmed", speedup=None, study_id="s1",
        description="FSDP2", freshness="fresh", cluster=catalogue.parse_cluster("8xh100"),
        best=SimpleNamespace(config="measured", tokens_per_s_per_gpu=1.0),
    )  # fmt: skip
    nothing = SimpleNamespace(fastest=())
    return SimpleNamespace(check_ready=lambda: None, find_best=lambda *_, **__: best, predict=lambda _: nothing)


def answering(body: httpx.Response) -> httpx.MockTransport:
    """Transport of a service that is ready, and answers everything else by this."""
    return httpx.MockTransport(lambda asked: httpx.Response(200) if asked.url.path == "/readyz" else body)


def test_an_answer_of_low_confidence_is_not_recommended() -> None:
    assert "measured on 8xh100 by study s1" in Recommender(answer_of("medium"), 5).recommend(WISH).reason
    with pytest.raises(NotRecommendable, match="nothing is predicted to fit surely"):
        Recommender(answer_of("low"), 5).recommend(WISH)


def test_a_workload_that_is_too_long_for_an_address_is_named() -> None:
    lengths = list(range(2, 12_002))
    workload = {"sequence_length": 16_384, "global_batch": 64, "data": {"lengths": lengths}}
    with ServiceClient("http://127.0.0.1:9", transport=answering(httpx.Response(500))) as client:
        wish = Wish("llama-3.1-8b", workload, ("8xh100",))
        with pytest.raises(NotRecommendable, match="as \\[tokens, samples\\] pairs") as rejected:
            Recommender(client, 5).recommend(wish)
    assert "the service does not answer" not in str(rejected.value), "nothing was sent to it"


def test_nothing_is_asked_after_half_of_the_time() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(404, json={"code": "unknown_best", "detail": "none"})

    client = ServiceClient("http://127.0.0.1:9", transport=httpx.MockTransport(answer), patience_s=0)
    with client, pytest.raises(NotRecommendable, match="no answer within 0 s"):
        Recommender(client, 0).recommend(WISH)
    assert asked == []


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Event for which a played service waits; it is set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def seconds_until_rejection(client: ServiceClient, answer_within_s: float, reason: str) -> float:
    """Least of three times for which a job waits; a busy machine may hold up any of them."""
    recommender, seconds = Recommender(client, answer_within_s), []
    for _ in range(3):
        started_s = time.monotonic()
        with pytest.raises(NotRecommendable, match=reason):
            recommender.recommend(WISH)
        seconds.append(time.monotonic() - started_s)
    return min(seconds)


def test_a_name_server_that_never_answers_holds_up_no_job(released: threading.Event) -> None:
    def resolve(_: httpx.Request) -> httpx.Response:
        # As in `getaddrinfo`, no time limit of the client ends the wait.
        released.wait()
        raise httpx.ConnectError("Temporary failure in name resolution")

    with ServiceClient("http://service.invalid", transport=httpx.MockTransport(resolve), patience_s=0) as client:
        assert seconds_until_rejection(client, 5, "the service does not answer within 0.6 s") <= 1


def test_more_jobs_than_threads_do_not_wait_for_those_before_them(released: threading.Event) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        released.wait()
        return httpx.Response(500)

    with ServiceClient("http://service.invalid", transport=httpx.MockTransport(answer), patience_s=0) as client:
        recommender = Recommender(client, 0.05)
        for _ in range(20):
            with pytest.raises(NotRecommendable, match="the service does not answer within"):
                recommender.recommend(WISH)
        assert 0 < len(asked) <= 16, "threads that nobody waits for do not accumulate"


def test_a_prediction_that_is_late_is_not_waited_for(released: threading.Event) -> None:
    def answer(asked: httpx.Request) -> httpx.Response:
        if asked.url.path == "/readyz":
            return httpx.Response(200)
        released.wait()
        return httpx.Response(500)

    with ServiceClient("http://service.invalid", transport=httpx.MockTransport(answer), patience_s=0) as client:
        assert 0.4 <= seconds_until_rejection(client, 0.5, "the service does not answer within 0.[345] s") <= 1


def test_a_service_that_is_not_ready_is_asked_for_nothing() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, json={"code": "database_unreachable", "detail": "the database cannot be reached"})

    client = ServiceClient("http://service.invalid", transport=httpx.MockTransport(answer), patience_s=0)
    with client, pytest.raises(NotRecommendable, match="the database cannot be reached"):
        Recommender(client, 5).recommend(WISH)
    assert asked == ["/readyz"]

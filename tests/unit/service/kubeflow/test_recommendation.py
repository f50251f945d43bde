"""The recommender: what it takes from a service, and when it stops asking."""

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
    return SimpleNamespace(find_best=lambda *_, **__: best, predict=lambda _: nothing)


def test_an_answer_of_low_confidence_is_not_recommended() -> None:
    assert "measured on 8xh100 by study s1" in Recommender(answer_of("medium"), 5).recommend(WISH).reason
    with pytest.raises(NotRecommendable, match="nothing is predicted to fit surely"):
        Recommender(answer_of("low"), 5).recommend(WISH)


def test_a_workload_that_is_too_long_for_an_address_is_named() -> None:
    lengths = list(range(2, 12_002))
    workload = {"sequence_length": 16_384, "global_batch": 64, "data": {"lengths": lengths}}
    with ServiceClient("http://127.0.0.1:9", transport=httpx.MockTransport(lambda _: httpx.Response(500))) as client:
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

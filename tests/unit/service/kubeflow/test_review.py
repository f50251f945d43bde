"""Admission reviews: every TrainJob is admitted, what it states itself stays, and a missing recommendation says why."""

import json
from typing import Any

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.kubeflow import review
from shardtune.service.kubeflow.recommendation import JobRecommendation
from shardtune.service.kubeflow.wish import NotRecommendable, Wish
from shardtune.tuner.prediction import catalogue
from tests.support.values import train_jobs
from tests.support.values.train_jobs import patched, train_job

OFFERED = ["2x8xh100", "4xh100", "8xh100"]
CONFIG = TrialConfig.model_validate({"strategy": {"kind": "fsdp2", "dp_shard": 8}, "micro_batch": 2, "threads": 0})


class FixedRecommender:
    """Recommends one configuration on the first cluster of every wish, and keeps the wishes."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.wishes = error, list[Wish]()

    def recommend(self, wish: Wish) -> JobRecommendation:
        self.wishes.append(wish)
        if self.error is not None:
            raise self.error
        return JobRecommendation(catalogue.parse_cluster(wish.clusters[0]), CONFIG, 1000.0, "measured by study s1")


def answered(job: Any, recommender: Any = None, **request: Any) -> dict[str, Any]:
    return review.answer(train_jobs.review(job, **request), OFFERED, recommender or FixedRecommender())


def test_a_job_that_asks_gets_sizes_resources_and_configuration() -> None:
    job = train_job()
    answer = answered(job)
    after = patched(job, answer)
    trainer = after["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (1, 4), "the smallest cluster"
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "4"}}
    (variable,) = (entry for entry in trainer["env"] if entry["name"] == "SHARDTUNE_CONFIGURATION")
    assert TrialConfig.model_validate_json(variable["value"]) == CONFIG
    annotations = after["metadata"]["annotations"]
    assert annotations["shardtune.io/recommendation"] == "measured by study s1"
    assert TrialConfig.model_validate_json(annotations["shardtune.io/configuration"]) == CONFIG
    assert answer["response"]["allowed"] and answer["response"]["uid"] == "705ab4f5-6393"
    assert answer["response"]["warnings"] == ["shardtune: measured by study s1"], "kubectl prints it"


def test_what_a_job_states_itself_stays_and_decides_the_cluster() -> None:
    own = {
        "numNodes": 2,
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8", "memory": "1Ti"}},
        "env": [{"name": "SHARDTUNE_CONFIGURATION", "value": "mine"}, {"name": "A", "value": "1"}],
    }
    job, recommender = train_job(own), FixedRecommender()
    trainer = patched(job, answered(job, recommender))["spec"]["trainer"]
    assert recommender.wishes[0].clusters == ("2x8xh100",)
    assert trainer["env"][:2] == own["env"] and "SHARDTUNE_CONFIGURATION" not in {e["name"] for e in trainer["env"][2:]}
    assert (trainer["resourcesPerNode"], trainer["numProcPerNode"]) == (own["resourcesPerNode"], 8)


def test_a_job_that_states_its_memory_alone_gets_the_devices_beside_it() -> None:
    job = train_job({"resourcesPerNode": {"limits": {"memory": "1Ti"}}})
    resources = patched(job, answered(job))["spec"]["trainer"]["resourcesPerNode"]
    assert resources == {"limits": {"memory": "1Ti", "nvidia.com/gpu": "4"}}


@pytest.mark.parametrize(
    "card", ["rdma/hca_shared_devices_a", "vpc.amazonaws.com/efa", "nvidia.com/hostdev", "a/output"]
)
def test_a_job_that_states_its_network_cards_gets_the_devices_beside_them(card: str) -> None:
    job = train_job({"resourcesPerNode": {"limits": {card: "1"}}})
    resources = patched(job, answered(job))["spec"]["trainer"]["resourcesPerNode"]
    assert resources == {"limits": {card: "1", "nvidia.com/gpu": "4"}}


def test_a_job_may_choose_among_the_offered_clusters() -> None:
    recommender = FixedRecommender()
    answered(train_job(clusters="2x8xh100, 8xh100, 2x8xh100"), recommender)
    assert recommender.wishes[0].clusters == ("8xh100", "2x8xh100"), "fewest GPUs first"


def test_a_job_without_a_trainer_gets_one() -> None:
    job = train_job()
    del job["spec"]["trainer"]
    assert patched(job, answered(job))["spec"]["trainer"]["numNodes"] == 1


@pytest.mark.parametrize(
    ("job", "request_fields"),
    [
        (train_job(labels={}), {}),
        (train_job(labels={"shardtune.io/recommend": "false"}), {}),
        (train_job(), {"operation": "UPDATE"}),
        (train_job(), {"kind": {"group": "batch", "version": "v1", "kind": "Job"}}),
        (None, {"operation": "DELETE"}),
        ({"metadata": {"labels": ["shardtune.io/recommend"]}}, {}),
    ],
)
def test_whoever_does_not_ask_is_admitted_without_a_word(job: Any, request_fields: dict[str, Any]) -> None:
    recommender = FixedRecommender()
    answer = answered(job, recommender, **request_fields)
    assert answer["response"] == {"uid": "705ab4f5-6393", "allowed": True} and not recommender.wishes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "shardtune.io/model (None) must be a preset"),
        ({"model": '{"model_type": "llama"}'}, "must be a preset such as llama-3.1-8b"),
        ({"workload": "4096"}, "shardtune.io/workload ('4096') must be a workload as JSON"),
        ({"workload": "[" * 90_000}, "must be a workload as JSON"),
        ({"workload": '{"sequence_length": 4096}'}, "shardtune.io/workload: global_batch: Field required"),
        ({"clusters": "8xb200"}, "('8xb200') names clusters that are not offered here; choose from 2x8xh100"),
        ({"clusters": "\ud800"}, "names clusters that are not offered here"),
        ({"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/mig-3g.40gb": "1"}}}}, "'nvidia.com/mig-3g.40gb'"),
        ({"trainer": {"resourcesPerNode": {"limits": {"amd.com/gpu": "8"}}}}, "other GPUs than nvidia.com/gpu"),
        ({"trainer": {"resourcesPerNode": {"claims": [{"name": "gpu"}]}}}, "states 'claims'"),
        ({"trainer": {"resourcesPerNode": {"limits": {"google.com/tpu": "4"}}}}, "states 'google.com/tpu'"),
        ({"trainer": {"resourcesPerNode": {"limits": {"habana.ai/gaudi": 8}}}}, "states 'habana.ai/gaudi'"),
        ({"trainer": {"resourcesPerNode": {"requests": {"gpu.intel.com/xe": "1"}}}}, "states 'gpu.intel.com/xe'"),
        ({"trainer": {"resourcesPerNode": {"limits": {"aws.amazon.com/neuroncore": 2}}}}, "neuroncore', beside which"),
        (
            {"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "4.0"}}}},
            "nvidia.com/gpu ('4.0') must be a whole",
        ),
        ({"trainer": {"resourcesPerNode": {"limits": "nvidia.com/gpu: 4"}}}, "resourcesPerNode.limits is malformed"),
        ({"trainer": {"resourcesPerNode": {"requests": ["cpu"]}}}, "resourcesPerNode.requests is malformed"),
        ({"trainer": {"numNodes": 64}}, "spec.trainer (numNodes 64) is the size of none of the clusters"),
        ({"trainer": {"resourcesPerNode": {"requests": {"nvidia.com/gpu": "1"}}}}, "GPUs per node 1"),
    ],
)
def test_a_wrong_wish_is_admitted_unchanged_with_field_value_and_remedy(changes: dict[str, Any], message: str) -> None:
    job = train_job(**changes)
    answer = answered(job)
    (warning,) = answer["response"]["warnings"]
    assert message in warning and answer["response"]["allowed"] and patched(job, answer) == job


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotRecommendable("the service does not answer"), "recommends nothing: the service does not answer"),
        (KeyError("a bug"), "an error, see the log of its webhook"),
    ],
)
def test_a_failing_recommender_changes_nothing(error: Exception, words: str) -> None:
    job = train_job()
    answer = answered(job, FixedRecommender(error))
    assert words in answer["response"]["warnings"][0] and patched(job, answer) == job


@pytest.mark.parametrize("spec", [None, [], "text", {"trainer": "text"}, {"trainer": {"env": "text", "numNodes": "x"}}])
def test_a_malformed_job_is_admitted(spec: Any) -> None:
    job = train_job() | {"spec": spec}
    answer = answered(job)
    assert answer["response"]["allowed"] and patched(job, answer) == job
    assert "correct it" in answer["response"]["warnings"][0] or "add it" in answer["response"]["warnings"][0]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", json.dumps({"kind": "AdmissionReview"}).encode(), b"[" * 10**6]
)
def test_what_is_no_review_is_rejected(body: bytes) -> None:
    with pytest.raises(review.NoReview, match=r"admission.k8s.io/v1"):
        review.answer(body, OFFERED, FixedRecommender())

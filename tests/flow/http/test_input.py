"""Bad input: 422 with field, value and remedy, and nothing half-created."""

import re

import pytest

from tests.flow.helpers.route_table import addresses
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

WORKLOAD = SPEC["workload"]


@pytest.fixture
def client(quick_client):
    SimulatedWorker(quick_client, causal_lm_types=("llama", "gpt2", "mixtral")).register()
    return quick_client


CASES = [
    ({"model": "llama-tyny"}, "model", "llama-tyny", "llama-tiny"),
    ({"model": {"name": "x", "config": {"hidden_size": 8}}}, "model.config.model_type", "None", "llama"),
    ({"model": {"model_type": "lama"}}, "model.config.model_type", "lama", "did you mean llama"),
    ({"model": {"model_type": "llama"}}, "model.config.hidden_size", None, "is missing from the model's config"),
    ({"model": {"hidden_size": 8}}, "model.model_type", "None", "add it"),
    (
        {"baseline": {"zero_optimisation": {"stage": 2}}},
        "baseline.zero_optimisation",
        "zero_optimisation",
        "did you mean zero_optimization?",
    ),
    ({"workload": WORKLOAD | {"global_batch": 0}}, "workload.global_batch", 0, "at least 1"),
    ({"workload": WORKLOAD | {"global_batch": 7}}, "workload.global_batch", "7", "multiple"),
    ({"workload": WORKLOAD | {"precision": "fp8"}}, "workload.precision", "fp8", "bf16-mixed"),
    ({"workload": WORKLOAD | {"sequence_length": 4096}}, "workload.sequence_length", 4096, "max_position_embeddings"),
    ({"workload": WORKLOAD | {"batch": 7}}, "workload.batch", 7, "remove it, or use one of sequence_length"),
    ({"clustr": "local"}, "clustr", "local", "did you mean cluster?"),
    ({"cluster": "locall"}, "cluster", "locall", "'local'"),
    (
        {"cluster": CLUSTER.model_dump() | {"gpus_per_node": 4}},
        "cluster",
        "4 × CPU ranks, 4 GiB each, host 16 GiB",
        "sim with 2 × CPU ranks",
    ),
    ({"cluster": {"device": "cuda"}}, "cluster.gpus_per_node", None, "add it"),
    ({"space": {"backends": []}}, "space.backends", "[]", "at least 1"),
    ({"space": {"knobs": {"micro_bach": 4}}}, "space.knobs", "micro_bach", "micro_batch"),
    ({"space": {"knobs": {"dp_shard": 3}, "backends": ["fsdp2"]}}, "space.knobs.dp_shard", "3", "name one of these"),
    ({"space": {"knobs": {"context_parallel": 3}}}, "space.knobs.context_parallel", "3", "the values here are 1, 2"),
    (
        {"baseline": {"strategy": {"kind": "ddp"}, "context_parallel": 3}},
        "baseline.context_parallel",
        "3",
        "must divide the number of ranks (2)",
    ),
    (
        {"space": {"knobs": {"tensor_parallel": 2}}, "model": "gpt2-tiny"},
        "space.knobs.tensor_parallel",
        "2",
        "no plan of tensor parallelism",
    ),
    (
        {"baseline": {"strategy": {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}}, "model": "mixtral-tiny"},
        "baseline.tensor_parallel",
        "2",
        "as no style of torch does",
    ),
    (
        {"space": {"knobs": {"pipeline_parallel": 3}}},
        "space.knobs.pipeline_parallel",
        "3",
        "the values here are 1, 2",
    ),
    (
        {"baseline": {"strategy": {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}, "micro_batch": 8}},
        "baseline.pipeline_parallel",
        "2",
        "use a smaller micro_batch",
    ),
    (
        {"space": {"knobs": {"expert_parallel": 2}}},
        "space.knobs.expert_parallel",
        "2",
        "it has no experts; use 1",
    ),
    (
        {"baseline": {"strategy": {"kind": "fsdp2", "dp_shard": 2, "expert_parallel": 3}}, "model": "mixtral-tiny"},
        "baseline.expert_parallel",
        "3",
        "must divide dp_shard (2)",
    ),
    ({"budget": {"max_trials": 0}}, "budget.max_trials", 0, "at least 1"),
    ({"baseline": {"train_batch_size": 16}}, "baseline.train_batch_size", "16", "global_batch is 8"),
    ({"baseline": {"strategy": {"kind": "fsdp2", "dp_shard": 8}}}, "baseline", None, "dp_shard 2"),
]


@pytest.mark.parametrize(("changes", "field", "value", "remedy"), CASES)
def test_mistake_is_named_with_value_and_remedy(client, changes, field, value, remedy):
    answer = client.post("/v1/studies", json=SPEC | changes)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    error = next((error for error in problem["errors"] if error["field"] == field), None)
    assert error is not None, problem["errors"]
    assert remedy in error["message"]
    assert error["value"] == value
    assert client.get("/v1/studies").json()["studies"] == []


def test_study_without_any_worker_is_rejected(quick_client):
    answer = quick_client.post("/v1/studies", json=SPEC)
    assert answer.json()["code"] == "no_worker" and "shardtune worker" in answer.json()["detail"]


@pytest.mark.parametrize("cluster", ["local", "8xh100"])
@pytest.mark.parametrize(("path", "within"), [("/v1/studies", False), ("/v1/best:resolve", True)])
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"model_type": "llama"}}, "model.config.hidden_size"),
        ({"workload": WORKLOAD | {"sequence_length": 4096}}, "workload.sequence_length"),
    ],
)
def test_a_mistake_is_named_before_that_there_is_no_worker(quick_client, cluster, path, within, changes, field):
    study = SPEC | {"cluster": cluster} | changes
    answer = quick_client.post(path, json={"study": study} if within else study).json()
    assert answer["code"] == "invalid_request" and answer["errors"][0]["field"] == field


def test_a_limit_that_leaves_nothing_is_named_before_that_there_is_no_worker(quick_client):
    study = SPEC | {"cluster": "8xh100", "space": {"knobs": {"micro_bach": 4}}}
    assert quick_client.post("/v1/studies", json=study).json()["errors"][0]["field"] == "space.knobs"


def test_worker_not_heard_of_for_long_does_not_count(client, clock):
    clock.turn(1000)
    assert client.post("/v1/studies", json=SPEC).json()["code"] == "no_worker"


def test_local_is_rejected_where_it_could_mean_several(client):
    SimulatedWorker(client, name="big", cluster=CLUSTER.model_copy(update={"gpus_per_node": 4})).register()
    detail = client.post("/v1/studies", json=SPEC).json()["detail"]
    assert "sim with 2 × CPU ranks" in detail and "big with 4 × CPU ranks" in detail


@pytest.mark.parametrize(
    ("body", "remedy"), [(b"{", "send a JSON object"), (b"[]", "must be an object"), (b"", "add it")]
)
def test_body_that_is_no_object(client, body, remedy):
    answer = client.post("/v1/studies", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and remedy in answer.json()["detail"]


def test_body_beyond_the_limit_is_rejected(client):
    answer = client.post("/v1/studies", content=b" " * (9 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 413 and answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("address", "name", "remedy"),
    [
        ("/v1/studies?stat=running", "stat", "did you mean state? the parameters are state, created_from"),
        ("/v1/best?model=llama-tiny&clustr=8xh100", "clustr", "did you mean cluster?"),
        ("/v1/workers?offset=3", "offset", "the parameters are"),
        ("/v1/studies/study-nope?verbose=1", "verbose", "it takes none; remove it"),
    ],
)
def test_a_query_parameter_that_the_route_does_not_read_is_rejected(quick_client, address, name, remedy):
    answer = quick_client.get(address)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    (error,) = answer.json()["errors"]
    assert error["field"] == name and remedy in error["message"]


def test_a_part_of_a_target_that_is_neither_a_name_nor_json_is_named(quick_client):
    answer = quick_client.get("/v1/best", params={"model": "tiny", "cluster": "8xh100", "workload": "<w>"})
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "model"


def test_a_creation_with_a_misspelt_query_parameter_creates_nothing(client):
    answer = client.post("/v1/studies?studyid=nightly", json=SPEC)
    assert answer.status_code == 422 and "did you mean study_id?" in answer.json()["detail"]
    assert client.get("/v1/studies").json()["studies"] == []


def test_every_parameter_that_a_route_reads_passes_and_pages_take_any(quick_client):
    for address in addresses(quick_client.app):
        for name in address.query:
            path = re.sub(r"{[^}]*}", "x", address.path)
            stated = "" if "stream" in path else quick_client.request(address.method, path, params={name: "?"}).text
            assert "is no query parameter" not in stated, (address, name)
    assert quick_client.get("/?utm_source=mail").status_code == 200


def test_unknown_things_are_problems_too(client):
    for method, path, status in (
        ("GET", "/v1/studies/study-nope", 404),
        ("POST", "/v1/studies/study-nope:cancel", 404),
        ("GET", "/v1/nope", 404),
        ("DELETE", "/v1/studies", 405),
        ("GET", "/v1/studies?limit=0", 422),
    ):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "code"} <= answer.json().keys()


def test_best_of_a_running_study_names_its_state(client):
    study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
    answer = client.get(f"/v1/studies/{study_id}/best")
    assert answer.status_code == 409 and "running (model_summary)" in answer.json()["detail"]


def test_openapi_and_health(client):
    assert "/v1/studies" in client.get("/openapi.json").json()["paths"]
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200

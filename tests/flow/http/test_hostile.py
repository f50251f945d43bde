"""Hostile requests: every request gets a clear 4xx, soon, and changes nothing."""

import json

import httpx
import pytest

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from tests.support.long_run import wide
from tests.support.service.replica import Replica
from tests.support.service.run_history import faults
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

MEGABYTE = "x" * (1 << 20)
LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
STUDY = SPEC | {"cluster": CLUSTER.model_dump()}
PREDICTION = {"model": LLAMA, "cluster": "8xh100"}
JSON = {"content-type": "application/json"}


def model(**changes):
    return json.dumps(STUDY | {"model": {"name": "m", "config": LLAMA | changes}})


def nested(depth, opening="[", closing="]"):
    return json.dumps(STUDY)[:-1] + ', "baseline": {"a": ' + opening * depth + closing * depth + "}}"


BODIES = {
    "NUL": model(torch_dtype="a\0b"),
    "NUL in a name": json.dumps(STUDY).replace('"budget"', '"budget\\u0000"'),
    "half a surrogate": model(torch_dtype="\ud800"),
    "half a surrogate as bytes": model(torch_dtype="@").encode().replace(b"@", b"\xed\xa0\x80"),
    "UTF-16": model().encode("utf-16"),
    "NaN": model(rope_theta=float("nan")),
    "Infinity": model(rope_theta=float("-inf")),
    "a float that overflows": model(rope_theta=0.5).replace("0.5", "1e999"),
    "65 bits": model(pad_token_id=1 << 64),
    "ten thousand digits": model(pad_token_id=7).replace(": 7}", ": " + "7" * 10_000 + "}"),
    "deep lists": nested(300),
    "too deep lists": nested(500_000),
    "too deep objects": nested(200_000, '{"a":', "}").replace('{"a":}', '{"a":1}'),
    "a megabyte of model": model(architectures=[MEGABYTE]),
    "a megabyte of name": json.dumps(STUDY | {"model": {"name": MEGABYTE, "config": LLAMA}}),
    "a megabyte of preset": json.dumps(STUDY | {"model": MEGABYTE}),
    "a megabyte of knob": json.dumps(STUDY | {"space": {"knobs": {MEGABYTE: 1}}}),
    "a million mistakes": json.dumps(STUDY | {"space": {"backends": ["x"] * 1_000_000}}),
    "eighty thousand mistakes": json.dumps(STUDY | {f"f{number}": 1 for number in range(80_000)}),
    "a path for a model": json.dumps(STUDY | {"model": "../../../etc/passwd"}),
    "a path for a script": json.dumps(STUDY | {"model": {"script": "../../bin/sh"}}),
    "a path for a module": json.dumps(STUDY | {"model": {"entry_point": "os:system"}}),
    "code of its own": model(auto_map={"AutoModel": "evil.Model"}),
    "a file for a baseline": json.dumps(STUDY | {"baseline": {"deepspeed": "/etc/passwd"}}),
    "no cluster has so many ranks": json.dumps(STUDY | {"cluster": CLUSTER.model_dump() | {"nodes": 10**18}}),
    "a list": "[]",
    "nothing": "",
}


@pytest.fixture
def client(quick_client):
    SimulatedWorker(quick_client).register()
    return quick_client


def rejected(answer):
    assert 400 <= answer.status_code < 500, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] and len(answer.content) < 100_000
    assert "Traceback" not in answer.text and "root:" not in answer.text
    return answer.json()


NAMED = ("NUL", "UTF-16", "too deep lists", "a megabyte of model", "eighty thousand mistakes", "nothing")
"""Kinds of bodies whose rejection is also asked for under a name, which the service keeps answers by."""


@pytest.mark.parametrize(
    ("kind", "named"), [*((kind, False) for kind in BODIES), *((kind, True) for kind in NAMED)], ids=str
)
def test_hostile_study_is_rejected(client, kind, named):
    body = BODIES[kind]
    content = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    rejected(client.post("/v1/studies", content=content, headers=JSON | ({"Idempotency-Key": "k"} if named else {})))
    assert client.get("/v1/studies").json()["studies"] == []


def test_hostile_studies_cost_a_running_service_little_memory(sqlite_url, tmp_path):
    with Replica(sqlite_url, tmp_path / "service.log") as replica:
        replica.wait_until_ready()
        before = replica.memory_mib()
        with httpx.Client(base_url=replica.url, timeout=60, trust_env=False) as http:
            for body in BODIES.values():
                content = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
                rejected(http.post("/v1/studies", content=content, headers=JSON))
            # No worker is here: the last to be rejected is a study without fault.
            assert rejected(http.post("/v1/studies", json=STUDY))["code"] == "no_worker"
        assert replica.memory_mib(peak=True) < before + 400


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size"])
@pytest.mark.parametrize("size", [wide(10**9), 10**18])
def test_absurd_dimensions_cost_nothing(client, field, size):
    """A model may be announced that no cluster holds; the answer says so, and nothing of its size is built."""
    study = client.post("/v1/studies", content=model(**{field: size}), headers=JSON)
    assert study.status_code == 201, study.text
    answer = client.post("/v1/predictions", json=PREDICTION | {"model": LLAMA | {field: size}})
    assert {row["memory"]["verdict"] for row in answer.json()["predictions"]} == {"does not fit"}


@pytest.mark.parametrize(
    "slices", [0, -1, 3, 1025, 10**18, 2.5, 1e300, True, "4", None, [], [0], [10**18, 1], {"least": 1}], ids=str
)
def test_absurd_mlp_slices_are_rejected(client, slices):
    limits = {"space": {"backends": ["fsdp2"], "knobs": {"mlp_slices": slices}}}
    assert "mlp_slices" in rejected(client.post("/v1/studies", json=STUDY | limits))["detail"]
    asked = PREDICTION | limits | {"sequence_length": 128, "global_batch": 64}
    assert "mlp_slices" in rejected(client.post("/v1/predictions", json=asked))["detail"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "changes",
    [
        {"model": LLAMA | {"max_position_embeddings": "many"}},
        {"model": LLAMA | {"num_attention_heads": 10**9}},
        {"model": LLAMA | {"hidden_size": -1}},
        {"model": LLAMA | {"hidden_size": "64"}},
        {"model": {"model_type": "gpt2", "n_embd": 2, "n_head": 4, "n_layer": 1, "vocab_size": 8}},
        {"cluster": "99999999x8xh100"},
        {"cluster": "9" * 10_000 + "xh100"},
        {"cluster": MEGABYTE},
        {"cluster": CLUSTER.model_dump() | {"memory_gib": 1e300}},
        {"micro_batch": 10**18},
        {"gradient_accumulation": 10**18},
        {"precision": MEGABYTE},
        {"configs": [{"strategy": {"kind": "fsdp2", "dp_shard": 10**18}}]},
        {"hardware": {"bf16_flops": 1e-300, "fp32_flops": 1e-300, "copy_bytes_per_s": 1e-300, "launch_s": 1e300}},
    ],
    ids=str,
)
def test_absurd_prediction_is_rejected(client, changes):
    rejected(client.post("/v1/predictions", json=PREDICTION | changes))


@pytest.mark.parametrize(
    "url",
    [
        "/v1/studies/%00",
        "/v1/studies/x%00:cancel",
        "/v1/studies/..%2f..%2fetc%2fpasswd",
        "/v1/studies/%2e%2e/export?which=../../etc/passwd",
        "/v1/studies?project=%00",
        "/v1/studies?%00=1",
        "/v1/studies?created_from=0001-01-01T00:00:00%2B14:00",
        "/v1/studies?created_before=9999-12-31T23:59:59-14:00",
        "/v1/studies?page_token=" + "W" * 400,
        "/v1/best?target_key=%00",
        "/v1/best?model=%7B%22model_type%22:%22%5Cud800%22%7D&cluster=%7B%7D&workload=%7B%7D",
        "/v1/best?model=" + "[" * 3000 + "&cluster=x&workload=x",
        "/static/..%2f..%2fsettings.py",
    ],
)
def test_hostile_address_is_rejected(client, url):
    assert 400 <= client.get(url).status_code < 500


def test_a_comparison_names_what_it_cannot_compare(client):
    pick = "x:" + "9" * 5000
    answer = client.get("/compare", params={"pick": pick}, headers={"accept": "text/html"})
    assert answer.status_code == 200 and f"Not comparable (unknown, or not measured yet): {pick}" in answer.text


def test_hostile_numbers_in_names_are_unknown(client):
    study = client.post("/v1/studies", json=STUDY).json()["study_id"]
    for which in ("9" * 30, "9" * 5000, "٣", "-1"):
        rejected(client.get(f"/v1/studies/{study}/export", params={"which": which}))
    rejected(client.get(f"/v1/studies/{study}/events", headers={"Last-Event-ID": "9" * 5000}))


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", "application/octet-stream"])
def test_other_content_type_is_rejected(client, kind):
    rejected(client.post("/v1/studies", content=json.dumps(STUDY), headers={"content-type": kind}))


def test_hostile_report_changes_nothing(client):
    worker = SimulatedWorker(client, name="../../tmp/x").register()
    client.post("/v1/studies", json=STUDY | {"budget": {"max_trials": 1}})
    lease = worker.lease()
    body = {
        "protocol_version": PROTOCOL_VERSION,
        "session": worker.session,
        "attempt": lease.attempt,
        "gpu_seconds": 1.0,
    }
    for changes in (
        {"attempt": 2**31},
        {"attempt": -(2**40)},
        {"gpu_seconds": 1e300},
        {"log_tail": "\0"},
        {"log_tail": MEGABYTE},
        {"model_summary": {"parameters": 10**30}},
        {"failure": {"kind": "crash", "message": "\0"}},
    ):
        rejected(client.post(f"/v1/runs/{lease.run_id}/report", json=body | changes))
    rejected(client.post(f"/v1/runs/{lease.run_id}/heartbeat", json=body | {"attempt": 2**40}))
    assert worker.heartbeat(lease)["action"] == "continue"
    worker.do(lease)
    worker.work()
    assert faults(client.app.state.context.db) == []

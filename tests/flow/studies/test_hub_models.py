"""Models named by their repository: the service reads one configuration file, from the allowed hosts, without a token."""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.process.hub_cache import HubCache
from shardtune.service.settings import Settings
from tests.support.service.model_hub import COMMIT, TINY, model_hub
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

FORM = {"hardware": "H100-SXM5-80GB", "sequence_length": "64"}
PREDICTION = {"cluster": "8xh100", "top": 0, "configs": [], "sequence_length": 64}


class PlayedResolver(DnsResolver):
    """Resolver that leads every name to one address, and notes the names."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.names = address, []

    async def addresses(self, host: str, port: int) -> list[str]:
        self.names.append(host)
        return [self.address]


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_operator")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with model_hub() as opened:
        yield opened


@pytest.fixture
def allow(quick_client, hub):
    """Change the operator's settings: by default the loopback hub is allowed."""

    def change(resolver=None, **settings):
        stated = {"hub": True, "hub_endpoint": hub.url, "hub_hosts": ("127.0.0.1",), "hub_allow_private": True}
        context = quick_client.app.state.context
        allowed = Settings(**context.settings.model_dump() | stated | settings)
        changes = {"settings": allowed, "hub_cache": HubCache()} | ({"dns_resolver": resolver} if resolver else {})
        quick_client.app.state.context = replace(context, **changes)
        return quick_client

    return change


def predict(client, model):
    return client.post("/v1/predictions", json=PREDICTION | {"model": model})


def test_a_study_stores_the_configuration_and_the_commit_that_it_was_read_at(allow, hub):
    client = allow()
    SimulatedWorker(client).register()
    study = client.post("/v1/studies", json=SPEC | {"model": "org/tiny"}).json()
    model = study["spec"]["model"]
    assert model["hub"] == {"id": "org/tiny", "revision": COMMIT} and model["config"] == TINY
    assert model["name"] == "org/tiny"
    assert [request[:2] for request in hub.requests] == [("GET", "/org/tiny/resolve/main/config.json")]


def test_no_token_is_sent_whatever_the_environment_of_the_service_has(allow, hub):
    assert predict(allow(), "org/tiny").status_code == 200
    assert predict(allow(), "gated/model").status_code == 422
    assert {request[2] for request in hub.requests} == {None}


def test_the_trials_of_a_model_by_name_are_those_of_its_configuration(allow):
    client = allow()
    named, sent = (predict(client, model).json() for model in ("org/tiny", TINY))
    assert named["predictions"] == sent["predictions"] and named["parameters"] == sent["parameters"]


def test_a_commit_is_read_once_and_a_branch_again_after_a_while(allow, hub):
    client = allow()
    for _ in range(2):
        assert predict(client, "org/tiny").status_code == 200
    assert predict(client, f"org/tiny@{COMMIT}").status_code == 200
    assert len(hub.requests) == 1


def test_a_recommendation_is_found_by_the_models_name(allow):
    client = allow()
    worker = SimulatedWorker(client, behave=quietly).register()
    client.post("/v1/studies", json=SPEC | {"model": "org/tiny"})
    worker.work()
    target = {"model": "org/tiny", "cluster": "local", "workload": json.dumps(SPEC["workload"])}
    best = client.get("/v1/best", params=target)
    assert best.status_code == 200, best.text
    assert best.json()["model"]["hub"] == {"id": "org/tiny", "revision": COMMIT}
    resolved = client.post("/v1/best:resolve", json={"study": SPEC | {"model": "org/tiny@main"}})
    assert resolved.status_code == 200, resolved.text


def test_a_redirect_of_the_hub_is_followed_on_allowed_hosts(allow):
    assert predict(allow(), "org/moved").status_code == 200


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("org/absent", "does not exist on the hub, or is private"),
        ("Qwen/Qwen3-8", "did you mean Qwen/Qwen3-8B"),
        ("gated/model", "is gated"),
        ("meta-llama/Llama-3.1-8B", "use the preset llama-3.1-8b"),
        ("org/tiny@v9", "has no revision v9"),
        ("org/remote", "needs code of its repository (auto_map)"),
        ("org/quantised", "has quantised weights"),
        ("org/huge", "at most 262144 are read"),
        ("org/adapter", "is an adapter of org/tiny"),
        ("org/broken", "that is not JSON"),
        ("org/deep", "that is not JSON"),
        ("org/list", "holds no object"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_with_field_value_and_remedy(allow, model, words):
    answer = predict(allow(), model)
    problem = answer.json()
    assert answer.status_code == 422 and problem["errors"][0]["field"] == "model", answer.text
    assert words in problem["detail"] and model in problem["detail"] and ";" in problem["detail"]


def test_a_configuration_that_no_database_stores_is_rejected(allow):
    answer = predict(allow(), "org/nul")
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "model.config.label"


@pytest.mark.parametrize("model", ["org/elsewhere", "org/loop", "org/busy", "org/unpinned"])
def test_a_hub_that_does_not_answer_as_one_is_unreachable(allow, model):
    answer = predict(allow(), model)
    assert answer.status_code == 503 and answer.json()["code"] == "hub_unreachable", answer.text


def test_nothing_outside_the_allowed_hosts_is_requested_not_even_by_a_redirect(allow, hub):
    resolver = PlayedResolver("127.0.0.1")
    client = allow(resolver, hub_endpoint=f"http://hub.example:{hub.port}", hub_hosts=("hub.example",))
    assert predict(client, "org/tiny").status_code == 200
    answer = predict(client, "org/elsewhere")
    assert answer.status_code == 503 and "SHARDTUNE_HUB_HOSTS" in answer.json()["detail"]
    assert set(resolver.names) == {"hub.example"} and "169.254" not in "".join(resolver.names)


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.7", "::1"])
def test_a_name_that_leads_to_a_private_address_is_not_requested(allow, hub, address):
    resolver = PlayedResolver(address)
    url = f"http://hub.example:{hub.port}"
    client = allow(resolver, hub_endpoint=url, hub_hosts=("hub.example",), hub_allow_private=False)
    answer = predict(client, "org/tiny")
    assert answer.status_code == 503 and "SHARDTUNE_HUB_ALLOW_PRIVATE" in answer.json()["detail"]
    assert hub.requests == [] and address not in answer.text


def test_a_service_whose_operator_did_not_allow_it_reads_no_hub(allow, hub):
    answer = predict(allow(hub=False), "org/tiny")
    assert answer.status_code == 422 and "SHARDTUNE_HUB" in answer.json()["detail"]
    assert hub.requests == []


def test_a_service_that_is_offline_reads_no_hub(allow, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answer = predict(allow(), "org/tiny")
    assert answer.status_code == 422 and "HF_HUB_OFFLINE" in answer.json()["detail"] and hub.requests == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hub_endpoint": "https://hub.example"}, "must contain hub.example"),
        ({"hub_endpoint": "ftp://huggingface.co"}, "must be https://HOST"),
        ({"hub_endpoint": "https://user:secret@huggingface.co"}, "without a password"),
    ],
)
def test_a_hub_that_could_not_be_read_keeps_the_service_from_starting(settings, words):
    with pytest.raises(ValidationError, match=words) as raised:
        Settings(hub=True, **settings)
    assert "secret" not in str(raised.value)


def test_the_page_of_a_new_study_takes_an_id_of_the_hub(allow):
    client = allow()
    shown = client.get("/new", params={"model": "hub", "hub": "org/tiny", **FORM})
    assert shown.status_code == 200 and 'class="wrong"' not in shown.text and "Bytes per parameter" in shown.text
    half = client.get("/new", params={"model": "hub", "hub": "org", **FORM})
    assert "must be OWNER/NAME" in half.text
    absent = client.get("/new", params={"model": "hub", "hub": "org/absent", **FORM})
    assert "does not exist on the hub" in absent.text


def test_a_plan_and_a_cost_estimate_read_the_model_from_the_hub(allow):
    client = allow()
    SimulatedWorker(client).register()
    run = {"model": "org/tiny", "tokens": 1e9, "gpus": ["h100"], "counts": [8]}
    assert client.post("/v1/plans", json=run).status_code == 200
    cost = client.post("/v1/predictions/study-cost", json=SPEC | {"model": "org/tiny"})
    assert cost.status_code == 200 and cost.json()["expected_gain"] is not None
    absent = client.post("/v1/plans", json=run | {"model": "org/absent"})
    assert absent.status_code == 422 and "does not exist on the hub" in absent.text

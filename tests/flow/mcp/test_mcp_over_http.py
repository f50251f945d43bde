"""MCP over streamable HTTP: the same keys, scopes, projects and limits as the REST API."""

from os import environ

import httpx
import jsonschema
import pytest
from mcp.client.stdio import StdioServerParameters

from shardtune.service.cli.processes import MODULE
from shardtune.service.mcp.tool_table import TOOLS
from shardtune.service.settings import Settings
from tests.support.service.agent_client import ask, over_http, over_stdio, rejected_or, text
from tests.support.service.scenarios import create, tune
from tests.support.service.simulated_worker import SimulatedWorker
from tests.support.values import synthetic_traces

JOB = {"model": "llama-3.1-8b", "cluster": "8xh100"}
STUDY = {"model": "llama-tiny", "sequence_length": 64, "global_batch": 8, "cluster": "local"}


@pytest.mark.answered
@pytest.mark.parametrize("transport", ["auto", "legacy", "stdio"])
def test_every_tool_answers_by_its_schema(service, transport, tmp_path):
    SimulatedWorker(service).register()
    traces = synthetic_traces.write(tmp_path / "traces", synthetic_traces.drawn_on_cuda(3))

    async def work(client):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for tool in tools.values():
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            jsonschema.Draft202012Validator.check_schema(tool.output_schema)
        study = (await client.call_tool("studies_list", {})).structured_content["studies"][0]["study_id"]
        arguments = {
            "predict": JOB | {"top": 1},
            "memory": JOB,
            "explain_config": JOB | {"config": {"strategy": {"kind": "fsdp2", "dp_shard": 8}}},
            "plan": {"model": "llama-3.1-8b", "tokens": 1e11, "gpus": ["h100"], "counts": [64]},
            "best": {"model": "llama-tiny", "cluster": "local", "sequence_length": 64, "global_batch": 8},
            "compare": {"picks": [study, f"{study}:0"]},
            "studies_list": {},
            "studies_status": {},
            "studies_create": STUDY | {"max_gpu_seconds": 600},
            "export": {"study_id": study},
            "diagnose": {"trace_folder": str(traces)}
            if transport == "stdio"
            else {"study_id": study, "max_gpu_seconds": 1e6},
        }
        answers = {name: await client.call_tool(name, given) for name, given in arguments.items()}
        return tools, answers

    if transport == "stdio":
        command = [*MODULE, "shardtune", "mcp", "--service", str(service.base_url)]
        tools, answers = over_stdio(
            StdioServerParameters(command=command[0], args=command[1:], env=dict(environ)), work
        )
    else:
        tools, answers = over_http(str(service.base_url), work, mode=transport)
    assert set(tools) == set(TOOLS) == set(answers)
    for name, answer in answers.items():
        assert not answer.is_error, (name, text(answer))
        jsonschema.validate(answer.structured_content, tools[name].output_schema)
    assert answers["studies_status"].structured_content["result"]["best"]["speed"]["basis"] == "measured"
    assert answers["plan"].structured_content["choices"][0]["days"]["basis"] == "predicted"
    assert answers["diagnose"].structured_content["state"] == ("complete" if transport == "stdio" else "waiting")


def test_a_message_needs_a_key_once_there_is_one(service, keys):
    keys("studies:read")
    answer = service.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert answer.status_code == 401 and answer.json()["code"] == "key_required"
    wrong = service.post("/mcp", json={}, headers={"authorization": "Bearer wrong"})
    assert wrong.status_code == 401 and wrong.json()["code"] == "key_invalid"


def test_a_missing_scope_is_named(service, keys, monkeypatch):
    reader = keys("configs:read", project="team-a")
    # The process's own key must never stand in for the caller's.
    monkeypatch.setenv("SHARDTUNE_API_KEY", keys("admin"))
    assert not ask(service, "predict", reader, **JOB, top=1).is_error
    answer = ask(service, "studies_list", reader)
    assert answer.is_error and "studies:read" in text(answer)


def test_wrong_input_names_field_value_and_remedy(service):
    answer = ask(service, "predict", **JOB, micro_batsh=2)
    assert answer.is_error and text(answer) == "micro_batsh (2): is not a field here; remove it, or use one of " + (
        "model, cluster, sequence_length, precision, optimizer, adapter, data, attention, global_batch, top, backends, knobs"
    )
    answer = ask(service, "predict", model="lama", cluster="8xh100")
    assert answer.is_error and text(answer).startswith("model ('lama') is not a preset; use one of")
    answer = ask(service, "predict", model="llama-3.1-8b", cluster="8xh900")
    assert answer.is_error and "h900" in text(answer)


@pytest.mark.answered
def test_a_trial_is_profiled_within_the_budget_only(service):
    rejected = ask(service, "diagnose", study_id="last")
    assert rejected.is_error and text(rejected).startswith("max_gpu_seconds (missing): no diagnosis of trial ")
    small = ask(service, "diagnose", study_id="last", max_gpu_seconds=1e-9)
    assert small.is_error and text(small).startswith("max_gpu_seconds (1e-09) does not cover one more run")
    assert service.get("/v1/studies").json()["studies"][0]["state"] == "complete"
    folder = ask(service, "diagnose", trace_folder="/etc")
    assert folder.is_error and "a service does not read files" in text(folder)


def test_a_foreign_project_is_not_seen(service, keys):
    mine, theirs = (keys("studies:read", "studies:write", "workers:lease", project=name) for name in ("mine", "other"))
    with httpx.Client(base_url=service.base_url, headers={"authorization": f"Bearer {theirs}"}, timeout=60) as other:
        study = tune(other)
    assert ask(service, "studies_list", mine).structured_content["studies"] == []
    for name, arguments in (
        ("studies_status", {"study_id": study}),
        ("export", {"study_id": study}),
        ("diagnose", {"study_id": study, "trial": 0, "max_gpu_seconds": 1e9}),
    ):
        answer = ask(service, name, mine, **arguments)
        assert answer.is_error and "speed" not in text(answer), text(answer)
    assert ask(service, "compare", mine, picks=[study, f"{study}:0"]).structured_content["configurations"] == []

    read = rejected_or(lambda client: client.read_resource(f"shardtune://studies/{study}"))
    assert "does not exist" in over_http(str(service.base_url), read, mine)
    assert study in over_http(str(service.base_url), read, theirs).contents[0].text


def test_a_name_of_a_study_addresses_nothing_else(service):
    for hostile in ("x:cancel?y=", "../keys", "a/b", "x%2f..", "X"):
        answer = ask(service, "studies_status", study_id=hostile)
        assert answer.is_error and text(answer).startswith("study_id (") and "404" not in text(answer)


def test_messages_count_against_the_projects_limit(service, keys):
    admin = keys("admin")
    quotas = {"requests_per_minute": 6}
    key = keys("configs:read", project="small")
    answer = service.put("/v1/projects/small", json={"quotas": quotas}, headers={"authorization": f"Bearer {admin}"})
    assert answer.is_success, answer.text
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"}
    codes = [service.post("/mcp", json=message, headers=headers).status_code for _ in range(8)]
    assert codes.count(429) == 2 and codes[-1] == 429


def test_bodies_and_methods_are_limited_before_they_are_read(service):
    answer = service.post("/mcp", content=b'"' + b"x" * (1 << 20) + b'"', headers={"content-type": "application/json"})
    assert answer.status_code == 413
    answer = service.post("/mcp", content=b"[" + b"0," * 60_000 + b"0]", headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert service.get("/mcp").status_code == 405


def test_a_page_of_another_site_cannot_call_a_service_without_keys(service):
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        assert service.post("/mcp", json=message, headers=headers).status_code == 403


def test_the_address_is_off_unless_the_operator_turns_it_on(quick_client):
    assert quick_client.post("/mcp", json={}, headers={"origin": "http://127.0.0.1"}).status_code in (403, 404, 405)
    assert Settings().mcp is False


def test_resources_are_pages_studies_and_the_openapi_document(service):
    study = create(service, cluster="8xh100", wait_for_worker_s=600.0)

    async def work(client):
        listed = [str(each.uri) for each in (await client.list_resources()).resources]
        templates = (await client.list_resource_templates()).resource_templates
        texts = [
            (await client.read_resource(uri)).contents[0].text
            for uri in (listed[0], "shardtune://openapi", f"shardtune://studies/{study}")
        ]
        return listed, [template.uri_template for template in templates], texts

    listed, templates, texts = over_http(str(service.base_url), work)
    assert "shardtune://docs/how-to/plan-a-run" in listed and templates == ["shardtune://studies/{study_id}"]
    assert texts[0].startswith("# ") and '"/v1/studies"' in texts[1] and study in texts[2]

"""Tools of the MCP server with a service that answers wrongly or is asked wrongly: each failure is named to the agent."""

import httpx
import pytest

from shardtune.service.cli.mcp.local_product import local_product
from shardtune.service.cli.mcp.stdio import StdioHost
from shardtune.service.client import ServiceClient
from shardtune.service.mcp.server import create_server
from tests.support.service.agent_client import call, in_process, rejected_or, text

JOB = {"model": "llama-3.1-8b", "cluster": "8xh100"}
WORKLOAD = {"sequence_length": 16_384, "global_batch": 64}


@pytest.fixture
def asked():
    """Addresses that the service was asked for."""
    return []


@pytest.fixture
def server(tmp_path, asked):
    """An MCP server beside a program that answers every request with a page."""

    def page(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, text="<html>")

    with ServiceClient("http://127.0.0.1:9", transport=httpx.MockTransport(page), patience_s=0) as client:
        yield create_server(StdioHost(local_product(tmp_path, client)))


def test_another_program_at_the_address_is_named(server):
    for name, arguments in (("studies_list", {}), ("best", JOB | WORKLOAD), ("predict", JOB)):
        answer = in_process(server, call(name, **arguments))
        assert answer.is_error and "is no Shardtune service, or one of another version" in text(answer)


def test_a_job_that_no_address_holds_is_named(server, asked):
    model = {"model_type": "llama", "id2label": {str(label): "a name" for label in range(5000)}}
    answer = in_process(server, call("best", **WORKLOAD, cluster="8xh100", model=model))
    assert answer.is_error and "the parameters are too long for an address" in text(answer) and asked == []


@pytest.mark.parametrize("name", ["..", ".", "../keys", "a/b", "x:cancel", "X", "a" * 40, ""])
def test_a_resource_names_a_study_and_nothing_else(server, asked, name):
    async def read(client):
        return await client.read_resource(f"shardtune://studies/{name}")

    assert "is no resource here" in in_process(server, rejected_or(read)) and asked == []


def test_a_file_of_another_program_is_named_by_the_tool_s_argument_and_as_predicted(tmp_path):
    server = create_server(StdioHost(local_product(tmp_path, None)))
    job = JOB | {"sequence_length": 4096, "global_batch": 64}
    wrong = in_process(server, call("explain_config", **job, config={"zero_optimization": {"stage": 9}}))
    assert wrong.is_error and text(wrong).startswith("config.zero_optimization.stage (9) must be 1, 2 or 3")
    file = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64, "zero_optimization": {"stage": 3}}
    notes = in_process(server, call("explain_config", **job, config=file)).structured_content["notes"]
    assert any(note.startswith("config.bf16.enabled is absent or auto; predicted as true") for note in notes)
    assert not any("baseline" in note or "measured as" in note or "measured with" in note for note in notes)


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    server = create_server(StdioHost(local_product(tmp_path, None)))
    answer = in_process(server, call("diagnose", trace_folder="x" * 5000))
    assert answer.is_error and "it cannot be read: File name too long; check the folder" in text(answer)

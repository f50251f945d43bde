"""Tools of the MCP server without a service: what they answer, and how they reject."""

import re

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.cli.mcp.local_product import local_product
from shardtune.service.cli.mcp.stdio import StdioHost
from shardtune.service.mcp.schemas.figures import Figure
from shardtune.service.mcp.server import create_server
from shardtune.service.mcp.tool_table import TOOLS
from tests.support.service.agent_client import call, in_process, rejected_or, text
from tests.support.values import synthetic_traces as made

JOB = {"model": "llama-3.1-8b", "cluster": "8xh100"}


@pytest.fixture
def ask(tmp_path):
    server = create_server(StdioHost(local_product(tmp_path, None)))
    return lambda name, **arguments: in_process(server, call(name, **arguments))


def figures(value):
    """Every figure of an answer."""
    if isinstance(value, dict):
        if "basis" in value:
            yield Figure.model_validate(value)
        for inner in value.values():
            yield from figures(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from figures(inner)


def test_a_prediction_says_that_nothing_was_measured(ask):
    answer = ask("predict", **JOB, top=2).structured_content
    assert answer["configurations"][0]["fits"] == "fits" and answer["summary"].endswith("Nothing was measured.")
    shown = list(figures(answer))
    assert len(shown) >= 6 and {each.basis for each in shown} == {"predicted"}
    assert all(each.unit and each.source for each in shown)
    assert all(each.low <= each.value <= each.high for each in shown if each.low is not None)


@pytest.mark.parametrize(
    ("adapter", "words"), [({"kind": "lora", "rank": 16}, "LoRA r=16"), ({"layers": 2}, "last 2 layers")]
)
def test_an_adapter_needs_less_memory_than_all_weights(ask, adapter, words):
    config = {"strategy": {"kind": "fsdp2", "dp_shard": 8}, "micro_batch": 1}
    # One program: an adapter leaves room, which the fastest configuration would use for a larger micro batch.
    knobs = {"micro_batch": 1, "activation_checkpointing": "none"}
    calls = {
        "predict": {"backends": ["fsdp2"], "knobs": knobs, "top": 20},
        "memory": {},
        "explain_config": {"config": config},
    }
    for name, arguments in calls.items():
        whole, part = (
            ask(name, **JOB, **arguments, **given).structured_content for given in ({}, {"adapter": adapter})
        )
        assert (whole["trained"], part["trained"]) == ("all weights", words)
        assert least_memory(part) < least_memory(whole)


def least_memory(answer):
    """Least memory of an answer's configurations in GiB."""
    rows = answer.get("configurations") or answer.get("strategies") or [answer["configuration"]]
    return min(row["memory"]["value"] for row in rows)


def test_a_file_of_another_program_is_read_for_an_adapter(ask):
    file = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64, "zero_optimization": {"stage": 3}}
    job = JOB | {"sequence_length": 4096, "global_batch": 64, "adapter": "lora"}
    answer = ask("explain_config", **job, config=file)
    assert not answer.is_error and answer.structured_content["trained"] == "LoRA r=16", text(answer)


def test_a_file_of_another_program_is_checked_against_the_lengths_of_samples(ask):
    file = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64, "zero_optimization": {"stage": 3}}
    job = JOB | {"sequence_length": 4096, "global_batch": 64}
    rejected = ask("explain_config", **job, data={"lengths": [128, 8192]}, config=file)
    assert rejected.is_error and "longest 8192" in text(rejected)
    short, full = (
        ask("explain_config", **job, **given, config=file).structured_content["configuration"]["memory"]["value"]
        for given in ({"data": {"lengths": [128, 512]}}, {})
    )
    assert short < full


def test_a_configuration_of_an_answer_is_input_of_the_next_call(ask):
    config = ask("predict", **JOB, top=1, backends=["zero"]).structured_content["configurations"][0]["config"]
    assert TrialConfig.model_validate(config).backend == "zero"
    explained = ask("explain_config", **JOB, config=config, global_batch=64).structured_content
    assert explained["configuration"]["config"] == config


def test_files_of_other_programs_are_explained_as_they_are(ask):
    file = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 64,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    answer = ask("explain_config", **JOB, config=file, sequence_length=4096, global_batch=64)
    strategy = answer.structured_content["configuration"]["config"]["strategy"]
    assert strategy["kind"] == "zero" and strategy["stage"] == 3 and answer.structured_content["differences"]
    rejected = ask("explain_config", **JOB, config=file)
    assert rejected.is_error and "sequence_length and global_batch" in text(rejected)


def test_offload_is_named_among_the_differences_and_the_limits_of_the_step(ask):
    file = {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 64,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    }
    answer = ask("explain_config", **JOB, config=file, sequence_length=4096, global_batch=64).structured_content
    assert answer["differences"]["offload_optimizer"][0] == answer["differences"]["offload_param"][0] == "cpu"
    assert "offload to the host (" in answer["summary"].split("limited by")[1]
    fractions = answer["configuration"]["resource_fractions"]
    assert fractions["offload to the host"] > 0.1 and sum(fractions.values()) == pytest.approx(1.0, abs=0.01)
    assert next(iter(fractions)) == answer["configuration"]["bound_by"]


def test_what_does_not_fit_comes_with_the_smallest_change(ask):
    answer = ask("explain_config", **JOB, config={"strategy": {"kind": "ddp"}, "micro_batch": 4}).structured_content
    assert answer["configuration"]["fits"] == "does not fit" and answer["configuration"]["cheapest_change"]
    assert sum(term["gib"] for term in answer["memory_terms"]) == pytest.approx(
        answer["configuration"]["memory"]["value"], rel=0.01
    )


def test_a_plan_bounds_its_rows(ask):
    answer = ask("plan", model="llama-3.1-8b", tokens=1e11, gpus=["h100"], counts=[64, 128, 256], rows=1)
    assert len(answer.structured_content["choices"]) == 1 and answer.structured_content["omitted"] == 2


def test_a_folder_of_traces_is_diagnosed_without_a_service(ask, tmp_path):
    folder = made.write(tmp_path / "traces", made.drawn_on_cuda(3))
    answer = ask("diagnose", trace_folder=str(folder)).structured_content
    assert answer["state"] == "complete" and answer["ranks"] == 2
    assert sum(part["value"] for part in answer["parts"].values()) == pytest.approx(1, abs=0.01)
    assert answer["step_time"]["basis"] == "measured"


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("predict", {}, "model: is required; add it"),
        ("predict", JOB | {"top": "3"}, 'top ("3"): '),
        ("predict", JOB | {"global_batch": 7}, "global_batch (7)"),
        ("predict", JOB | {"knobs": {"nothing": 1}}, "nothing"),
        ("predict", JOB | {"adapter": {"load_in_8bit": True}}, "asks for 8-bit base weights, which no trial trains"),
        ("memory", JOB | {"adapter": {"r": 8}}, "did you mean rank?"),
        ("predict", JOB | {"adapter": {"kind": "lora", "targets": ["q_porj"]}}, "did you mean q_proj or"),
        (
            "plan",
            {"model": "llama-3.1-8b", "tokens": 1e9, "gpus": ["h100"], "counts": [8], "adapter": "lora"},
            "adapter",
        ),
        ("predict", JOB | {"model": {"model_type": "llama", "auto_map": {"A": "b.C"}}}, "auto_map"),
        ("memory", JOB | {"checkpointing": "some"}, 'checkpointing ("some"): '),
        (
            "memory",
            {"model": "llama-3.1-8b", "cluster": "local"},
            "cluster ('local'): this machine has not been measured",
        ),
        ("explain_config", JOB | {"config": {"strategy": {"kind": "fsdp3"}}}, "config.strategy"),
        ("explain_config", JOB | {"config": {"strategy": {"kind": "ddp"}, "micro": 1}}, "config.micro"),
        ("plan", {"model": "llama-3.1-8b", "tokens": 1e9, "gpus": ["h100"], "counts": [0]}, "counts (0)"),
        ("plan", {"model": "llama-3.1-8b", "tokens": 1e9, "gpus": ["h101"], "counts": [8]}, "h101"),
        ("diagnose", {}, "trace_folder (missing)"),
        ("diagnose", {"trace_folder": "/nowhere"}, "trace_folder (/nowhere): "),
        (
            "studies_create",
            {"model": "llama-tiny", "sequence_length": 8, "global_batch": 8},
            "tool (studies_create) needs",
        ),
        ("export", {"which": "worst"}, 'which ("worst"): '),
    ],
)
def test_a_rejection_names_field_value_and_remedy(ask, name, arguments, line):
    answer = ask(name, **arguments)
    assert answer.is_error and line in text(answer), text(answer)
    assert "Traceback" not in text(answer) and "pydantic" not in text(answer)


def test_tools_of_studies_say_how_to_get_a_service(ask):
    needing = {"best": {}, "studies_list": {}, "studies_status": {}, "export": {}, "compare": {"picks": ["a", "b"]}}
    for name, arguments in needing.items():
        assert f"tool ({name}) needs a service" in text(ask(name, **arguments))


def test_an_unexpected_error_shows_the_agent_nothing_of_itself(tmp_path):
    product = local_product(tmp_path, None)

    def broken(_request):
        raise KeyError("secret")

    server = create_server(StdioHost(type(product)(broken, product.plan)))
    answer = in_process(server, call("predict", **JOB))
    assert answer.is_error and text(answer) == "tool (predict) failed; the log of the server has the reason"


def test_unknown_tools_prompts_and_resources_are_rejected(tmp_path):
    server = create_server(StdioHost(local_product(tmp_path, None)))

    async def prompt(client):
        return await client.get_prompt("tune_my_training_script", {})

    async def page(client):
        return await client.read_resource("shardtune://docs/../../pyproject")

    for work, line in ((call("forecast"), "the tools are"), (prompt, "script"), (page, "list the resources")):
        assert line in in_process(server, rejected_or(work))


def test_prompts_name_only_tools_that_exist(tmp_path):
    server = create_server(StdioHost(local_product(tmp_path, None)))

    async def work(client):
        prompts = (await client.list_prompts()).prompts
        given = {"script": "train.py", "cluster": "8xh100", "error": "CUDA out of memory", "trace_folder": "t"}
        return [
            (await client.get_prompt(each.name, {a.name: given[a.name] for a in each.arguments}))
            .messages[0]
            .content.text
            for each in prompts
        ]

    texts = in_process(server, work)
    assert len(texts) == 3 and all("budget" in each for each in texts)
    called = {name for each in texts for name in re.findall(r"[Cc]all `(\w+)`", each)}
    assert called <= set(TOOLS) and {"explain_config", "diagnose", "studies_create"} <= called


def test_costing_tools_are_not_declared_read_only(tmp_path):
    async def work(client):
        return (await client.list_tools()).tools

    tools = in_process(create_server(StdioHost(local_product(tmp_path, None))), work)
    writing = {tool.name for tool in tools if not tool.annotations.read_only_hint}
    assert writing == {"studies_create", "diagnose"} == {name for name, entry in TOOLS.items() if entry.can_cost}
    # The agent reads all of them before it begins.
    assert sum(len(tool.model_dump_json()) for tool in tools) < 120_000

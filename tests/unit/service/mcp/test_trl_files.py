"""Files of TRL in the tools of the MCP server: predicted with the loss that TRL computes."""

import pytest

from shardtune.service.cli.mcp.local_product import local_product
from shardtune.service.cli.mcp.stdio import StdioHost
from shardtune.service.mcp.server import create_server
from shardtune.tuner.baseline import trl_loss
from tests.support.service.agent_client import call, in_process

JOB = {"model": "llama-3.1-8b", "cluster": "8xh100", "sequence_length": 4096, "global_batch": 64, "adapter": "lora"}
FILE = {"per_device_train_batch_size": 8, "bf16": True, "packing": False, "fsdp": True, "fsdp_config": {"version": 2}}


@pytest.fixture
def explain(tmp_path, monkeypatch):
    monkeypatch.setattr(trl_loss, "installed_version", lambda: None)
    server = create_server(StdioHost(local_product(tmp_path, None)))
    return lambda **beside: in_process(server, call("explain_config", **JOB, config=FILE | beside)).structured_content


def test_a_fine_tuning_is_predicted_with_the_loss_of_its_release_of_trl(explain):
    newest, older, whole = (explain(trl_version=version) for version in ("1.16.0", "1.9.2", "1.6.0"))
    losses = [
        (row["configuration"]["config"].get("loss"), row["configuration"]["config"].get("loss_chunk"))
        for row in (newest, older, whole)
    ]
    assert losses == [("chunked", None), ("chunked", 256), (None, None)]
    least, less, most = (row["configuration"]["memory"]["value"] for row in (older, newest, whole))
    assert least <= less < most
    assert "tiles of 4,096 tokens and 32,768 words; predicted in chunks of 1,024 tokens" in str(newest)

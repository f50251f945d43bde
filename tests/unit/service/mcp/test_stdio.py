"""`shardtune mcp` on stdin and stdout."""

import json
import os
import subprocess
import sys

import pytest
from mcp.client.stdio import StdioServerParameters

from shardtune.service.cli.processes import MODULE
from tests.support.service.agent_client import call, over_stdio, text

COMMAND = [*MODULE, "shardtune", "mcp"]


def server(folder, *options):
    """The command as an agent starts it."""
    return StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], *options], cwd=str(folder), env=dict(os.environ)
    )


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_lists_and_calls_tools(mode, tmp_path):
    async def work(client):
        tools = (await client.list_tools()).tools
        answer = await client.call_tool("memory", {"model": "llama-3.2-1b", "cluster": "1xh100"})
        return tools, answer

    tools, answer = over_stdio(server(tmp_path), work, mode)
    assert len(tools) == 11 and not answer.is_error, text(answer)


def test_stdout_holds_the_protocol_alone():
    messages = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        "no JSON-RPC",
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "predict", "arguments": {"a": "\x1b[31m"}},
        },
    ]
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("".join(f"{json.dumps(message)}\n" for message in messages))
        process.stdin.flush()
        answers = []
        # The end of stdin would cancel the call.
        while not answers or answers[-1].get("id") != 2:
            answers.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.stdout.read() == "" and process.wait(60) == 0
    assert all(answer["jsonrpc"] == "2.0" for answer in answers) and answers[-1]["result"]["isError"]


def test_a_service_that_is_away_leaves_the_local_tools(tmp_path):
    command = server(tmp_path, "--service", "http://127.0.0.1:9")
    answer = over_stdio(command, call("studies_list"))
    assert answer.is_error and "no answer from the service at http://127.0.0.1:9" in text(answer)
    assert "trace_folder (/x)" in text(over_stdio(command, call("diagnose", trace_folder="/x")))


def test_without_the_package_the_command_names_the_extra(tmp_path):
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mcp' else find(name, *rest)\n"
        "from shardtune.service.cli import main; main(['mcp'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "`pip install 'shardtune[mcp]'` with this environment's pip" in ended.stderr

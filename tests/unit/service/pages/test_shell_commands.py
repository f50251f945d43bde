"""Commands that pages offer to copy run as they are, but for the key file, which the service does not know."""

import shlex

import pytest

from shardtune.service.pages.shell_commands import ServiceCommands


def test_commands_name_a_key_file_where_the_service_needs_a_key():
    commands = ServiceCommands("https://tune.example", requires_key=True)
    assert commands.worker == "SHARDTUNE_API_KEY_FILE=KEY_FILE shardtune worker --service https://tune.example"
    extend = commands.complete("shardtune studies extend study-1 --add-pairs 3")
    assert extend.endswith(" --add-pairs 3 --service https://tune.example --key-file KEY_FILE")


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8470", "http://[::1]:8470", "http://a;b&c 'd"])
def test_commands_quote_the_address(origin):
    commands = ServiceCommands(origin, requires_key=False)
    assert shlex.split(commands.worker) == ["shardtune", "worker", "--service", origin]
    assert shlex.split(commands.complete("shardtune best"))[-2:] == ["--service", origin]

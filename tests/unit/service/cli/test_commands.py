"""The table of commands: complete, in the commands' own words, and quick to read."""

import subprocess
import sys

import pytest

from shardtune.service.cli import main
from shardtune.service.cli.commands.app import PLACES, command

HEAVY = {"fastapi", "sqlalchemy", "alembic", "numpy", "optuna", "pydantic", "httpx", "torch"}


@pytest.mark.parametrize("name", PLACES)
def test_the_table_says_of_a_command_what_it_says_itself(name, capsys):
    found = command(name)
    assert (found.name, found.help) == (name, PLACES[name].help)
    if name != "worker":
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0 and f" {name} " in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_who_asks_for_help_waits_for_nothing(option):
    script = (
        "import sys\nfrom shardtune.service.cli import main\n"
        f"try:\n    main(['{option}'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    said, _, loaded = ran.stdout.rpartition("loaded ")
    assert ("tune" in said or "shardtune 0" in said) and not HEAVY & set(loaded.split())


def test_who_asks_for_the_help_of_a_command_waits_for_no_database_predictor_or_client():
    script = (
        "import sys\nfrom shardtune.service.cli import main\n"
        f"for name in {[name for name in PLACES if name != 'worker']}:\n"
        "    try:\n        main([name, '--help'])\n    except SystemExit as end:\n        assert not end.code\n"
        "print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not (HEAVY - {"pydantic"}) & set(ran.stdout.rpartition("loaded ")[2].split())


def test_who_asks_for_the_help_of_the_worker_waits_for_nothing():
    script = (
        "import sys\nfrom shardtune.workers.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    said, _, loaded = ran.stdout.rpartition("loaded ")
    assert "--allow-script" in said and not (HEAVY | {"psutil"}) & set(loaded.split())


def test_a_command_that_is_none(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tine"])
    assert ended.value.code == 2 and "No such command 'tine'" in capsys.readouterr().err

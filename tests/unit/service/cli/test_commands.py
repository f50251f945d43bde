"""The table of commands: complete, in the commands' own words, and quick to read."""

import json
import os
import subprocess
import sys

import pytest

from shardtune.service.cli import main
from shardtune.service.cli.commands.app import COMMANDS, command

MOST_MODULES = 585
"""Most modules that a rejected command imports; Python itself brings half of them."""
MOST_SEARCHES = 10
"""Most searches for garbage while a command is imported and its options are read; 33 if they are not turned off."""
BLAS_THREADS = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
HEAVY = {"fastapi", "sqlalchemy", "alembic", "numpy", "optuna", "pydantic", "httpx", "torch"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_of_a_command_what_it_says_itself(name, capsys):
    actual_command = command(name)
    assert (actual_command.name, actual_command.help) == (name, COMMANDS[name].help)
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
    stated, _, loaded = ran.stdout.rpartition("loaded ")
    assert ("tune" in stated or "shardtune 0" in stated) and not HEAVY & set(loaded.split())


def test_who_asks_for_the_help_of_a_command_waits_for_no_database_predictor_or_client():
    script = (
        "import sys\nfrom shardtune.service.cli import main\n"
        f"for name in {[name for name in COMMANDS if name != 'worker']}:\n"
        "    try:\n        main([name, '--help'])\n    except SystemExit as end:\n        assert not end.code\n"
        "print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not (HEAVY - {"pydantic"}) & set(ran.stdout.rpartition("loaded ")[2].split())


def test_a_command_that_asks_the_service_waits_for_no_command_line_of_httpx():
    script = (
        "import gc, sys\nfrom shardtune.service.cli import main\n"
        "try:\n    main(['studies', 'list', '--service', 'http://127.0.0.1:9'])\nexcept SystemExit as end:\n    assert end.code == 4\n"
        "print(gc.isenabled(), 'httpx' in sys.modules, sys.modules['httpx._main'])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["True", "True", "None"]


@pytest.mark.parametrize(("arguments", "is_skipped"), [("", "True"), ("['--version']", "False")])
def test_a_process_that_ends_with_its_command_waits_for_no_last_search_for_garbage(arguments, is_skipped):
    script = (
        "import atexit, gc, sys\nfrom shardtune.service.cli import main\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        f"sys.argv = ['shardtune', '--version']\nmain({arguments})"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split()[-1] == is_skipped


def test_options_are_read_without_searches_for_garbage():
    script = (
        "import gc\nfrom shardtune.service.cli import main\n"
        "searches = []\ngc.callbacks.append(lambda phase, info: searches.append(phase))\n"
        "try:\n    main(['predict', 'gpt2', '--top', '101'])\nexcept SystemExit as end:\n    assert end.code == 2\n"
        "print(gc.isenabled(), len(searches) // 2)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    enabled, searches = ran.stdout.split()
    assert enabled == "True" and int(searches) < MOST_SEARCHES


def test_a_prediction_starts_no_threads_and_leaves_the_environment_as_it_was():
    script = (
        "import os\nfrom shardtune.service.cli import main\n"
        "try:\n    main(['predict', 'gpt2', '--cluster', '1xh100', '--top', '0'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in BLAS_THREADS}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert ran.stdout.splitlines()[-1] == "1 None"


def test_who_asks_for_the_help_of_the_worker_waits_for_nothing():
    script = (
        "import sys\nfrom shardtune.workers.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    stated, _, loaded = ran.stdout.rpartition("loaded ")
    assert "--allow-script" in stated and not (HEAVY | {"psutil"}) & set(loaded.split())


SOUND = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}, "cluster": "local"}
MISSPELT_MODEL = {"model_type": "llama", "num_hidden_layer": 2, "hidden_size": 64, "num_attention_heads": 4}
WRONG = {
    "model ('nope') is not a preset": {"model": "nope"},
    "workload.global_batch (17) must be a multiple": {"workload": {"sequence_length": 64, "global_batch": 17}},
    "space.knobs.micro_batch ([3]) leaves nothing": {"space": {"knobs": {"micro_batch": [3]}}},
    "it has num_hidden_layer: did you mean num_hidden_layers?": {"model": MISSPELT_MODEL},
    "did you mean zero_optimization?": {"baseline": {"zero_optimisation": {"stage": 2}}},
}


@pytest.mark.parametrize("stated", WRONG)
def test_an_error_of_meaning_waits_for_no_database_predictor_client_or_process(stated, tmp_path):
    study = tmp_path / "study.json"
    study.write_text(json.dumps(SOUND | WRONG[stated]))
    script = (
        "import sys\nfrom shardtune.service.cli import main\n"
        f"try:\n    main(['tune', {str(study)!r}])\nexcept SystemExit as end:\n    assert end.code == 2\n"
        "print('loaded', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ran.stdout.rpartition("loaded ")[2].split())
    assert stated in ran.stderr and len(ran.stderr.splitlines()) == 1
    assert not (HEAVY - {"pydantic"}) & loaded and "shardtune.service.cli.local_stack" not in loaded
    assert len(loaded) < MOST_MODULES


def test_a_command_that_is_none(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tine"])
    assert ended.value.code == 2 and "No such command 'tine'" in capsys.readouterr().err

"""The example that compares two installations: it fails the build for a slowdown, and for nothing else."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from docs.generate import sources
from examples import slower_torch


@pytest.fixture
def installed(tmp_path):
    """Function that makes a command `shardtune` which measures such a speed, or prints such a text."""

    def install(name: str, printed: object) -> str:
        command = tmp_path / name
        text = json.dumps({"tokens_per_s_per_gpu": printed}) if isinstance(printed, float) else printed
        command.write_text(f"#!{sys.executable}\nprint({text!r})\n")
        command.chmod(0o755)
        return str(command)

    return install


def compare(old: str, new: str, *options: str) -> int:
    return slower_torch.main(["best/config.json", "--old", old, "--new", new, *options])


@pytest.mark.parametrize(("speed", "code"), [(900.0, 1), (990.0, 0), (1100.0, 0)])
def test_the_build_fails_for_a_slowdown_beyond_the_tolerance_alone(installed, capsys, speed, code):
    assert compare(installed("old", 1000.0), installed("new", speed)) == code
    printed = capsys.readouterr().out
    assert ("loses 10.0%" in printed and "7 pairs" in printed) == bool(code)


def test_a_run_that_fails_is_no_slowdown_and_its_reason_is_printed(installed, capsys):
    assert compare(installed("old", 1000.0), installed("new", "no such trial")) == slower_torch.FAILED
    assert "no such trial" in capsys.readouterr().err


def test_an_error_that_nobody_expects_is_no_slowdown(installed, tmp_path, capsys):
    assert compare(str(tmp_path / "missing"), installed("new", 1000.0)) == slower_torch.FAILED
    assert compare(installed("old", 1000.0), installed("new", 0.0)) == slower_torch.FAILED
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--pairs", "3"), ("--tolerance", "1")])
def test_limits_that_decide_nothing_are_rejected(installed, capsys, options):
    with pytest.raises(SystemExit) as ended:
        compare(installed("old", 1.0), installed("new", 1.0), *options)
    assert ended.value.code == 2 and options[0] in capsys.readouterr().err


def test_the_workflow_calls_the_script_with_options_that_it_has():
    workflow = yaml.safe_load(Path(sources.ROOT, "examples/github/slower-torch.yml").read_text())
    (call,) = [step["run"] for step in workflow["jobs"]["compare"]["steps"] if step.get("name") == "Compare"]
    assert call.split()[1] == "slower_torch.py" and {"--old", "--new"} <= set(call.split())

"""Models and scripts that a worker's owner allows, and the rejection of all others."""

from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.__main__ import main
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.config.allowlist import Allowed, Script
from shardtune.workers.config.settings import WorkerSettings

SCRIPTS = Allowed(frozenset({"lora"}), {"plain": Script(Path("/srv/train.py"), ("--data", "x"))})


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            ModelSpec(name="x", entry_point="other"),
            "entry_point ('other') is not allowed on this worker; allowed: lora",
        ),
        (ModelSpec(name="x", script="other"), "script ('other') is not allowed on this worker; allowed: plain"),
    ],
)
def test_a_name_that_is_not_allowed_is_rejected_with_those_that_are(model, says):
    with pytest.raises(ValueError, match="not allowed") as error:
        SCRIPTS.check(model)
    assert says in str(error.value)


def test_what_is_allowed_passes():
    SCRIPTS.check(ModelSpec(name="x", entry_point="lora"))
    SCRIPTS.check(ModelSpec(name="x", script="plain"))
    Allowed().check(ModelSpec.model_validate("gpt2-tiny"))


def test_a_run_of_what_is_not_allowed_starts_nothing(task: TrialTask, tmp_path: Path):
    fingerprint = Fingerprint.model_construct(device=task.cluster.device)
    place = Workplace(tmp_path, None, fingerprint, 8, None, 0, allowed=SCRIPTS)  # type: ignore[arg-type]
    own = task.model_copy(update={"model": ModelSpec(name="x", script="rm")})
    attempted = run_attempt(place, own, lambda: pytest.fail("a folder was made"), RunLimits(1, 1), lambda: None)
    assert attempted is not None and isinstance(attempted.result, Failure)
    assert attempted.result.kind is FailureKind.SETUP and "allowed: plain" in attempted.result.message


@pytest.mark.parametrize("name", ["../../etc/passwd", "os:system", "a b", "", "-x", "/bin/sh"])
def test_a_study_can_only_name_things(name):
    for kind in ("entry_point", "script"):
        with pytest.raises(ValueError, match=kind):
            ModelSpec.model_validate({"name": "x", kind: name})


def test_settings_come_from_options_and_from_the_environment(monkeypatch):
    options = WorkerSettings(allowed_models=["a"], allowed_scripts=["plain=train.py --data x"])
    assert options.allowed_models == ("a",) and options.allowed_scripts == {"plain": "train.py --data x"}
    monkeypatch.setenv("SHARDTUNE_WORKER_ALLOWED_MODELS", "a, b")
    monkeypatch.setenv("SHARDTUNE_WORKER_ALLOWED_SCRIPTS", "p=one.py --x=1; q=two.py")
    read = WorkerSettings()
    assert read.allowed_models == ("a", "b") and read.allowed_scripts == {"p": "one.py --x=1", "q": "two.py"}


def test_a_command_is_a_script_and_its_arguments(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    actual_script = Allowed.of([], {"plain": f"python {script} --data 'a b'"}).scripts["plain"]
    assert actual_script == Script(script, ("--data", "a b"))


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--allow-script", "plain", "NAME=COMMAND"),
        ("--allow-script", "plain=/no/such.py", "Python script that exists"),
        ("--allow-script", "plain=python -c 'print(1)'", "Python script that exists"),
        ("--allow-model", "no-such-model", "not installed"),
    ],
)
def test_what_cannot_be_allowed_is_exit_code_2(option, value, says, capsys):
    assert main(["detect", option, value]) == 2
    assert says in capsys.readouterr().err

"""Code and hardware that this command line cannot use are rejected before anything starts."""

import json
from pathlib import Path

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import early_checks, job, local_devices
from shardtune.service.cli.tune.local_devices import LocalDevices
from tests.unit.service.cli.next_commands.undecided_study import ALLOWED, options


def rejection(model: ModelSpec, *allowed: str) -> str:
    with pytest.raises(InputError) as rejected:
        early_checks.check_own_code(model, allowed)
    return str(rejected.value)


def test_code_that_no_option_allows_is_rejected_with_the_option_that_would() -> None:
    script, point = ModelSpec(name="x", script="mine"), ModelSpec(name="x", entry_point="lora")
    assert rejection(script).endswith("there is no --allow-script; add --allow-script mine=/path/to/train.py")
    stated_rejection = rejection(script, "--allow-script", "mein=train.py --x 1")
    assert stated_rejection.startswith("model.script ('mine') is not allowed by this command line: only mein")
    assert stated_rejection.endswith("did you mean --allow-script 'mine=train.py --x 1'?")
    assert rejection(point, "--allow-model", "lora2").endswith("did you mean --allow-model lora?")
    for model in (script, point, preset("llama-tiny")):
        early_checks.check_own_code(model, ALLOWED)


def test_code_that_the_environment_may_allow_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTUNE_WORKER_ALLOWED_SCRIPTS", "mine=train.py")
    model = ModelSpec(name="x", script="mine")
    early_checks.check_own_code(model, ())
    assert "only other" in rejection(model, "--allow-script", "other=train.py")


@pytest.mark.parametrize("hosts", [(), ("--launcher", "slurm")])
def test_a_misspelt_script_is_rejected_before_anything_is_started(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    path = tmp_path / "study.json"
    model = {"script": "mine", "config": {}}
    path.write_text(json.dumps({"model": model, "workload": {"sequence_length": 64, "global_batch": 16}}))
    input_options = options(
        study=path, state_dir=tmp_path / "state", allowed=("--allow-script", "mein=t.py"), hosts=hosts
    )
    with pytest.raises(InputError, match="did you mean"):
        job.tune(input_options)
    assert not (tmp_path / "state").exists()


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("cluster", "devices", "reason"),
    [
        ("8xh100", LocalDevices(has_driver=False, gpus=()), "it has no NVIDIA GPU"),
        ("8xh100", LocalDevices(has_driver=True, gpus=(H100,) * 4), "it has 4 GPUs"),
        ("8xh100", LocalDevices(has_driver=True, gpus=(A100,) * 8), f"it has {A100}"),
        ("2x8xh100", LocalDevices(has_driver=True, gpus=(H100,) * 8), "it has 2 hosts, and tune uses one"),
        ("8xh100", LocalDevices(has_driver=True, gpus=(H100,) * 8), None),
        ("4xh100", LocalDevices(has_driver=True, gpus=(H100,) * 8), None),
        ("8xh100", LocalDevices(has_driver=True, gpus=None), None),
    ],
)
def test_hardware_that_is_not_here_is_rejected_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, cluster: str, devices: LocalDevices, reason: str | None
) -> None:
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    workload = {"sequence_length": 64, "global_batch": 16}
    spec = StudyRequest.model_validate({"model": "llama-tiny", "workload": workload, "cluster": cluster})
    if reason is None:
        early_checks.check_hardware(spec, (), devices)
    else:
        with pytest.raises(InputError, match=f"cluster \\({cluster}\\) cannot run on this machine: {reason}"):
            early_checks.check_hardware(spec, (), devices)
    early_checks.check_hardware(spec, ("--launcher", "ray"), devices)
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", "postgresql://db/shared")
    early_checks.check_hardware(spec, (), devices)


def test_the_drivers_list_names_the_gpus(tmp_path: Path) -> None:
    assert local_devices.detect([tmp_path / "nvidiactl"], tmp_path) == LocalDevices(has_driver=False, gpus=())
    (tmp_path / "nvidiactl").touch()
    assert local_devices.detect([tmp_path / "nvidiactl"], tmp_path / "none").gpus is None
    folder = tmp_path / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t {H100}\nIRQ:   \t\t 144\n")
    assert local_devices.detect([tmp_path / "nvidiactl"], tmp_path / "gpus").gpus == (H100,)

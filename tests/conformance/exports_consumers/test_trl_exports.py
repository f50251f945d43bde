"""Exports for TRL, as TRL's own parser reads them."""

import json
from pathlib import Path

import pytest
import yaml

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.tuner.export import export
from tests.conformance.exports_consumers.exported_files import (
    DDP,
    EIGHT_GPUS,
    FSDP2,
    PLAIN_FSDP2,
    ZERO,
    exported,
    read_back,
)
from tests.support.values.synthetic_studies import contender_of, study_of


@pytest.mark.parametrize("config", [DDP, FSDP2, ZERO], ids=lambda config: config.backend)
def test_trls_own_parser_reads_the_file(config: TrialConfig, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed: `make test-consumers` runs this")
    says = read_back(config, "trl", tmp_path)
    assert f"batch {config.micro_batch} × {4 // config.micro_batch}, max_length 32" in says


@pytest.mark.parametrize("config", [DDP, FSDP2, ZERO], ids=lambda config: config.backend)
def test_trl_has_the_arguments_of_the_trainer_and_says_what_it_does_besides(config: TrialConfig) -> None:
    trl, trainer = exported(config, "trl"), exported(config, "training-arguments")
    values = yaml.safe_load(trl.files["trl_sft.yaml"])
    expected = json.loads(trainer.files["training_arguments.json"])
    if "deepspeed" in expected:
        assert json.loads(trl.files[values.pop("deepspeed")]) == expected.pop("deepspeed")
    assert {name: values[name] for name in expected} == expected
    # SFTConfig's own defaults would checkpoint, and train in bfloat16.
    assert values["gradient_checkpointing"] is values["activation_checkpointing"] is (config is ZERO)
    assert "bf16" in values and values["packing"] is False
    # TRL's header sets the environment above its command; the Trainer's script is started by a command of the user.
    (environment,) = [line for line in trainer.lossy if line.startswith("environment: start the ranks with ")]
    assert f"export {environment.removeprefix('environment: start the ranks with ')}\n" in trl.files["trl_sft.yaml"]
    assert set(trainer.lossy) - {environment} < set(trl.lossy)
    assert {line.partition(":")[0] for line in set(trl.lossy) - set(trainer.lossy)} == {
        "data",
        "loss",
        "metrics",
        "adapters",
        "model",
    }
    compile(trl.files["trl_sft.py"], "trl_sft.py", "exec")


def test_trl_trains_the_model_that_the_study_names_at_its_commit() -> None:
    study = study_of("llama-tiny", "bf16-mixed", EIGHT_GPUS, global_batch=32)
    hub = HubSource(id="Qwen/Qwen3-8B", revision="ab" * 20)
    spec = study.spec.model_copy(update={"model": study.spec.model.model_copy(update={"hub": hub})})
    files = export(study.model_copy(update={"spec": spec}), contender_of(PLAIN_FSDP2), "trl").files
    values = yaml.safe_load(files["trl_sft.yaml"])
    assert (values["model_name_or_path"], values["model_revision"]) == ("Qwen/Qwen3-8B", "ab" * 20)

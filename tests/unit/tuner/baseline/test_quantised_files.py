"""Exported files of trials beside 4-bit weights as baselines: each is read back as what was measured."""

from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.service.cli import baseline_file
from shardtune.tuner.baseline import implied_precision, resolve_with_notes
from shardtune.tuner.export import export
from tests.support.values.synthetic_studies import contender_of, study_of, with_adapter

GPUS = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
QLORA = Lora(rank=8, alpha=16.0, quantization="nf4")
NAMES: dict[ExportFormat, str] = {
    "trl": "trl_sft.yaml",
    "standard": "accelerate.yaml",
    "training-arguments": "training_arguments.json",
    "axolotl": "axolotl.yaml",
    "llama-factory": "llama_factory.yaml",
    "ms-swift": "ms_swift.yaml",
}
CONFIGS = {
    "ddp": TrialConfig(strategy=DdpConfig(bucket_cap_mb=7), micro_batch=2),
    "fsdp2": TrialConfig(strategy=Fsdp2Config(dp_shard=8, grad_sync="last"), activation_checkpointing="full"),
    "zero-2": TrialConfig(strategy=ZeroConfig(stage=2), micro_batch=2),
}
TRAINER: dict[str, Any] = {"per_device_train_batch_size": 2, "output_dir": "out", "bf16": True, "load_in_4bit": True}
ACCELERATE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU"}
ACCELERATE |= {"mixed_precision": "bf16"}
FACTORY: dict[str, Any] = {"finetuning_type": "lora", "lora_rank": 8, "quantization_bit": 4, "cutoff_len": 64}
FACTORY |= {"double_quantization": False, "per_device_train_batch_size": 2, "bf16": True}


def workload(precision: str = "bf16-mixed") -> Workload:
    return Workload(sequence_length=64, global_batch=16, precision=PRECISIONS[precision], adapter=QLORA)


@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("name", CONFIGS)
def test_an_export_beside_4_bit_weights_is_read_back_as_what_was_measured(
    form: ExportFormat, name: str, tmp_path: Path
) -> None:
    """Where the study states no precision, too: then the file's own counts."""
    study = with_adapter(study_of("llama-tiny", "bf16-mixed", GPUS, global_batch=32), dict(QLORA))
    for file, text in export(study, contender_of(CONFIGS[name]), form).files.items():
        (tmp_path / file).write_text(text)
    values = baseline_file.read(NAMES[form], tmp_path)
    implied = implied_precision(values, QLORA)
    assert implied is None or implied[0] == study.spec.workload.precision, implied
    resolved = resolve_with_notes(values, study.spec.workload, GPUS)
    # Accelerate's own file has no batch size.
    update: dict[str, Any] = {"micro_batch": 1} if form == "standard" and name != "zero-2" else {}
    if form == "trl":
        # TRL 1.16 has no other loss, as the export says.
        update["loss"] = "chunked"
    expected = CONFIGS[name].model_copy(update=update)
    assert resolved.config is not None
    assert {**dict(resolved.config), "strategy": None} == {**dict(expected), "strategy": None}
    assert resolved.config.strategy.kind == expected.strategy.kind
    assert not any("bf16-autocast" in note for note in resolved.notes), resolved.notes


@pytest.mark.parametrize("values", [TRAINER, ACCELERATE], ids=["trainer", "accelerate"])
def test_bf16_under_ddp_beside_4_bit_weights_implies_the_precision_that_trials_have(values: dict[str, Any]) -> None:
    plain, packed = (implied_precision(values, adapter) for adapter in (Lora(), QLORA))
    assert plain is not None and plain[0] == PRECISIONS["bf16-autocast"]
    assert packed is not None and packed[0] == PRECISIONS["bf16-mixed"]
    assert "which no trial does beside 4-bit weights" in packed[1]
    notes = resolve_with_notes(values, workload(), GPUS).notes
    assert any(
        "is autocast, which no trial does beside 4-bit weights; measured as bf16-mixed" in note for note in notes
    )


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        (TRAINER, "fp32"),
        (TRAINER, "bf16-true"),
        (ACCELERATE, "fp32"),
        (FACTORY, "bf16-true"),
        ({"train_micro_batch_size_per_gpu": 2, "torch_autocast": {"enabled": True}}, "bf16-mixed"),
    ],
)
def test_no_error_names_a_precision_that_4_bit_weights_reject(values: dict[str, Any], precision: str) -> None:
    with pytest.raises(ValueError, match=r"(bf16|pure_bf16|torch_autocast\.enabled)") as raised:
        resolve_with_notes(values, workload(precision), GPUS)
    assert "bf16-autocast" not in str(raised.value)

"""Files of Accelerate and transformers: contradictions, examples, and how a file is found."""

from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError
from shardtune.tuner.baseline import resolve_with_notes
from tests.unit.tuner.baseline.library_files import ACCELERATE, FSDP, TRAINER, TWO_RANKS, read

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.mark.parametrize(
    ("inputs", "theirs", "ours"),
    [
        (FSDP | {"mixed_precision": "no"}, "mixed_precision", "bf16-mixed"),
        (FSDP | {"mixed_precision": "fp16"}, "mixed_precision fp16 (true)", "fp16-mixed"),
        (FSDP | {"num_processes": 8}, "num_processes (8)", "cluster has 2"),
        (FSDP | {"fsdp_config": {"fsdp_sharding_strategy": "HALF"}}, "sharding_strategy ('half')", "FULL_SHARD"),
        (FSDP | {"fsdp_config": {"fsdp_sharding_strategy": "²"}}, "sharding_strategy ('²')", "FULL_SHARD"),
        (FSDP | {"fsdp_config": {"fsdp_version": 3}}, "version (3)", "1 or 2"),
        (FSDP | {"fsdp_config": {"fsdp_offload_params": True}}, "cpu_offload (true)", "GPU"),
        (ACCELERATE | {"distributed_type": "MEGATRON_LM"}, "megatron_lm", "not offered"),
        (ACCELERATE | {"deepspeed_config": {"deepspeed_config_file": "x.json"}, "distributed_type": "DEEPSPEED"},
         "deepspeed_config_file ('x.json')", "content"),
        (TRAINER | {"per_device_train_batch_size": 3}, "(3 × 1 (default) × 2 = 6)", "global_batch is 16"),
        (TRAINER | {"bf16": False}, "bf16 (false)", "bf16-mixed"),
        (TRAINER | {"fp16": True}, "fp16 (true)", "fp16-mixed"),
        (TRAINER | {"learning_rate": 1e-5}, "learning_rate (1e-05)", "optimizer.lr is 0.0003"),
        (TRAINER | {"max_grad_norm": 0.5}, "max_grad_norm (0.5)", "max_grad_norm is 1.0"),
        (TRAINER | {"optim": "adafactor"}, "optim ('adafactor')", "AdamW"),
        (TRAINER | {"optim": "adamw_torch_8bit"}, "optim ('adamw_torch_8bit')", "AdamW"),
        (TRAINER | {"optim": "adamw_torch_4bit"}, "optim ('adamw_torch_4bit')", "AdamW"),
        (TRAINER | {"label_smoothing_factor": 0.1}, "label_smoothing_factor (0.1)", "cross entropy"),
        ({"strategy": {"kind": "zero", "stage": 3}, "activation_checkpointing": "selective"}, "selective", "'full' or 'none'"),
    ],
)  # fmt: skip
def test_a_contradiction_names_both_sides(inputs: dict[str, Any], theirs: str, ours: str) -> None:
    with pytest.raises(ValueError) as rejected:
        read(inputs)
    assert theirs in str(rejected.value) and ours in str(rejected.value)


@pytest.mark.parametrize("library", ["accelerate", "trainer", "deepspeed"])
def test_the_examples_are_read_without_a_contradiction(library: str) -> None:
    path = EXAMPLES / f"llama-tiny-from-{library}.json"
    spec = study_file.validate_study(study_file.read_json_object(path), path.parent)
    assert not isinstance(spec.baseline, TrialConfig)
    assert resolve_with_notes(spec.baseline, spec.workload, TWO_RANKS).config is not None


def test_files_a_baseline_names_are_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "args.yaml").write_text("deepspeed: ds.json\nlearning_rate: 3e-4\n")
    (tmp_path / "sub" / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    study = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}
    spec = study_file.validate_study({**study, "baseline": "sub/args.yaml"}, tmp_path)
    assert spec.baseline == {"deepspeed": {"zero_optimization": {"stage": 2}}, "learning_rate": "3e-4"}


@pytest.mark.parametrize(
    ("text", "named"), [("a: [1\nb: 2", "line 2"), ("- 1", "holds a list"), ("deepspeed: none.json", "none.json")]
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError) as rejected:
        study_file.validate_study({"model": "llama-tiny", "baseline": {"file": "x.yaml"}}, tmp_path)
    assert named in "\n".join(rejected.value.lines)

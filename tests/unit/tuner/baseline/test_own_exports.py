"""Exports that are given back as a baseline, and what a file that says less than the workload loses."""

import json

import pytest
import yaml
from pydantic import JsonValue

from shardtune.api_schemas.knobs import Consumer, Key
from shardtune.api_schemas.knobs.declarations import knobs_by_field
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import (
    DdpConfig,
    Fsdp1Config,
    Fsdp2Config,
    Offload,
    Strategy,
    TrialConfig,
    ZeroConfig,
)
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline.implied_precision import implied_precision
from shardtune.tuner.baseline.resolve import resolve_with_notes
from shardtune.tuner.export import export
from tests.support.values.synthetic_studies import contender_of, study_of

EIGHT = Cluster(gpu="h100", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
FLOAT8 = Workload(sequence_length=64, global_batch=32, precision=PRECISIONS["bf16-mixed"], float8="tensorwise")


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-autocast", "bf16-true", "fp32"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_training_arguments_under_zero_are_read_as_the_configuration_that_was_exported(
    stage: int, precision: str
) -> None:
    offload = Offload() if stage == 3 else None
    config = TrialConfig(strategy=ZeroConfig(stage=stage, offload_optimizer=offload), micro_batch=4)
    study = study_of("llama-tiny", precision, EIGHT, global_batch=32)
    document = json.loads(_exported(study, config)["training_arguments.json"])
    resolved = resolve_with_notes(document, study.spec.workload, EIGHT)
    assert resolved.config == config
    # By default the Trainer waits for each micro batch's loss.
    assert document["logging_nan_inf_filter"] is False
    assert not any("logging" in note for note in resolved.notes)
    if precision == "bf16-autocast":
        implied = implied_precision(document)
        assert implied is not None
        assert implied[0].name == precision


@pytest.mark.parametrize("strategy", [DdpConfig(), ZeroConfig(stage=2)], ids=["ddp", "zero"])
def test_every_nth_block_is_exported_to_the_trainer_and_read_back(strategy: Strategy) -> None:
    """FSDP's own checkpointing counts no blocks, so it is lost there."""
    config = TrialConfig(strategy=strategy, micro_batch=4, activation_checkpointing="full", checkpoint_every=3)
    study = study_of("llama-tiny", "bf16-mixed", EIGHT, global_batch=32)
    answer = export(study, contender_of(config), "training-arguments")
    document = json.loads(answer.files["training_arguments.json"])
    assert document["activation_checkpointing_kwargs"] == {"use_reentrant": False, "every_n_layers": 3}
    assert answer.lossy_config is None and any(line.startswith("checkpoint_every: blocks 3") for line in answer.lossy)
    assert resolve_with_notes(document, study.spec.workload, EIGHT).config == config
    sharded = config.model_copy(update={"strategy": Fsdp2Config(dp_shard=8)})
    lost = export(study, contender_of(sharded), "training-arguments")
    assert "every_n_layers" not in "".join(lost.files.values())
    assert "checkpoint_every: 3 was measured; Trainer has 1" in lost.lossy


@pytest.mark.parametrize(
    "baseline",
    [
        {"per_device_train_batch_size": 4, "bf16": True},
        {"mixed_precision": "bf16", "distributed_type": "MULTI_GPU", "micro_batch": 4},
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 4},
    ],
)
def test_a_plain_file_beside_float8_is_told_with_the_difference(baseline: dict[str, JsonValue]) -> None:
    (note,) = [note for note in resolve_with_notes(baseline, FLOAT8, EIGHT).notes if "float8" in note]
    assert "says nothing of float8; measured with the workload's float8 ('tensorwise')" in note


def test_a_file_with_fp8_and_a_configuration_of_ours_get_no_such_note() -> None:
    ours: dict[str, JsonValue] = {"kind": "ddp"}
    fp8: dict[str, JsonValue] = {"mixed_precision": "fp8", "distributed_type": "MULTI_GPU", "micro_batch": 4}
    for baseline in (ours, fp8):
        notes = resolve_with_notes(baseline, FLOAT8, EIGHT).notes
        assert not any("says nothing of float8" in note for note in notes)


STRATEGIES: tuple[Strategy, ...] = (DdpConfig(), Fsdp1Config(dp_shard=8), Fsdp2Config(dp_shard=8))
STATED: list[tuple[Strategy, Consumer, str]] = [
    (strategy, consumer, name)
    for strategy in STRATEGIES
    for consumer in ("accelerate", "training_arguments")
    for name, knob in knobs_by_field(type(strategy)).items()
    if isinstance(knob.exports.get(consumer), Key)
]
"""Knobs that a program's own file states by a key."""


@pytest.mark.parametrize(("strategy", "consumer", "name"), STATED, ids=lambda value: str(getattr(value, "kind", value)))
def test_a_knob_that_an_exported_file_states_is_read_from_it(strategy: Strategy, consumer: Consumer, name: str) -> None:
    default = getattr(strategy, name)
    value = not default if isinstance(default, bool) else default + 1
    config = TrialConfig(strategy=strategy.model_validate({**strategy.model_dump(), name: value}))
    study = study_of("llama-tiny", "bf16-mixed", EIGHT, global_batch=8)
    if consumer == "accelerate":
        document = yaml.safe_load(export(study, contender_of(config), "standard").files["accelerate.yaml"])
    else:
        document = json.loads(_exported(study, config)["training_arguments.json"])
    read = resolve_with_notes(document, study.spec.workload, EIGHT).config
    assert read is not None and getattr(read.strategy, name) == value, "tuner/baseline: the reader leaves the key out"


def _exported(study: Study, config: TrialConfig) -> dict[str, str]:
    return dict(export(study, contender_of(config), "training-arguments").files)

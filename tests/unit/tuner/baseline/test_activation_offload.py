"""Files of other programs that keep blocks' inputs in host memory are measured so."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline import ResolvedBaseline, resolve_with_notes

WORKLOAD = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-mixed"])
TWO = Cluster(gpus_per_node=2, memory_gib=80, host_memory_gib=800)
ACCELERATE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "mixed_precision": "bf16",
    "distributed_type": "FSDP",
}
TRAINER: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 8, "bf16": True, "max_grad_norm": 1}
FSDP2 = {"fsdp_version": 2, "fsdp_activation_checkpointing": True, "fsdp_activation_checkpointing_offload": True}


def read(values: dict[str, Any]) -> ResolvedBaseline:
    return resolve_with_notes(values, WORKLOAD, TWO)


def test_accelerates_fsdp2_offloads() -> None:
    config, notes = read(ACCELERATE | {"fsdp_config": FSDP2})
    assert config is not None and config.activation_offload and config.activation_checkpointing == "full"
    assert not any("offload" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fsdp_version": 1}, r"activation_checkpointing_offload \(true\) needs FSDP2; set .*version to 2"),
        (
            {"fsdp_activation_checkpointing": False},
            r"activation_checkpointing_offload \(true\) needs .*; set that to true",
        ),
        ({"fsdp_activation_checkpointing_offload": "often"}, r"\('often'\) must be true or false"),
    ],
)
def test_what_accelerate_would_reject_is_rejected(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(ACCELERATE | {"fsdp_config": FSDP2 | change})


@pytest.mark.parametrize("prefix", ["activation", "gradient"])
def test_the_trainers_option_is_read_under_both_names(prefix: str) -> None:
    values = {
        f"{prefix}_checkpointing": True,
        f"{prefix}_checkpointing_kwargs": {"use_reentrant": False, "offload": True},
    }
    config, notes = read(TRAINER | values)
    assert config is not None and config.activation_offload
    assert not any("kwargs" in note for note in notes)


def test_without_checkpointing_the_option_has_no_effect() -> None:
    config, _ = read(TRAINER | {"gradient_checkpointing_kwargs": {"offload": True}})
    assert config is not None and not config.activation_offload

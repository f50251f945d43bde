"""Optimizers in a workload: how they are named, stored and keyed."""

from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.strategies import (
    DdpConfig,
    Fsdp1Config,
    Fsdp2Config,
    TrialConfig,
    ZeroConfig,
    sample_groups,
)
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import OPTIMIZERS, AdamW, Muon
from shardtune.api_schemas.training.workload import Workload
from shardtune.service.http.validation_errors import error_path

SIZES = {"sequence_length": 64, "global_batch": 8}
STORED_KEY = "fa861d7cfc2340bb7bf0e944c466f10e"
"""Key that an answer for `target()` had before optimizers had a kind."""


def target(**workload: Any) -> TuningTarget:
    cluster = Cluster(device="cpu", gpu="x", nodes=1, gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    return TuningTarget(ModelSpec.model_validate("llama-tiny"), Workload.model_validate(SIZES | workload), cluster)


def test_a_workload_stored_without_a_kind_means_adamw() -> None:
    stored = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    assert Workload.model_validate(SIZES | {"optimizer": stored}).optimizer == AdamW(lr=1e-3)


def test_the_keys_of_stored_answers_stay() -> None:
    assert target().target_key_without_fingerprint == STORED_KEY
    assert "kind" not in target().canonical()["workload"]["optimizer"]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_kind_alone_means_its_defaults(kind: str) -> None:
    assert Workload.model_validate(SIZES | {"optimizer": kind}).optimizer == OPTIMIZERS[kind]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_dumped_workload_is_read_back(kind: str) -> None:
    workload = Workload.model_validate(SIZES | {"optimizer": kind})
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


def test_another_optimizer_has_another_key() -> None:
    assert target(optimizer="muon").target_key_without_fingerprint != STORED_KEY
    assert target(optimizer="muon").canonical()["workload"]["optimizer"]["kind"] == "muon"


def test_an_error_names_the_field_without_the_branch_of_the_union() -> None:
    with pytest.raises(ValidationError) as caught:
        Workload.model_validate(SIZES | {"optimizer": {"kind": "muon", "adamw": {"lr": 0}}})
    assert error_path(caught.value.errors()[0]) == ["optimizer", "adamw", "lr"]


def test_muon_keeps_one_value_of_a_matrix_and_two_of_the_rest() -> None:
    assert (AdamW().state_values(100, 80), Muon().state_values(100, 80)) == (200, 80 + 2 * 20)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (ZeroConfig(stage=2), r"strategy.kind \('zero'\) cannot train with Muon, .* use ddp or fsdp2"),
        (Fsdp1Config(dp_shard=2), r"strategy.kind \('fsdp1'\) cannot train with Muon, .* use ddp or fsdp2"),
        (Fsdp2Config(dp_shard=2, cpu_offload=True), r"strategy.cpu_offload \(true\) cannot .* set it to false"),
        (Fsdp2Config(dp_shard=1, tensor_parallel=2), r"tensor_parallel \(2\) splits the matrices .* use 1, or adamw"),
    ],
    ids=["zero", "fsdp1", "offload", "tensor"],
)
def test_a_backend_that_cannot_train_with_muon_says_why(strategy: Any, message: str) -> None:
    aim = target(optimizer="muon")
    with pytest.raises(ValueError, match=message):
        sample_groups.check(TrialConfig(strategy=strategy), aim.cluster, aim.workload)


def test_a_backend_that_can_train_with_muon_is_not_rejected() -> None:
    aim = target(optimizer="muon")
    for strategy in (DdpConfig(), Fsdp2Config(dp_shard=2), Fsdp2Config(dp_shard=1, pipeline_parallel=2)):
        sample_groups.check(TrialConfig(strategy=strategy), aim.cluster, aim.workload)


def test_an_unknown_kind_is_rejected_with_the_kinds_there_are() -> None:
    with pytest.raises(ValidationError, match=r"optimizer \('sgd'\) is unknown; use one of adamw"):
        Workload.model_validate(SIZES | {"optimizer": "sgd"})

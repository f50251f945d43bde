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
    Offload,
    TrialConfig,
    ZeroConfig,
    optimizer_support,
    sample_groups,
)
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import OPTIMIZERS, AdamW, AdamW8bit, AdamWBf16, Muon, replaced
from shardtune.api_schemas.training.workload import Workload, WorkloadRequest
from shardtune.service.http.validation_errors import error_path

SIZES = {"sequence_length": 64, "global_batch": 8}
IN_BF16 = SIZES | {"precision": "bf16-true"}
"""Workload of the precision that every optimizer takes."""
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
    assert Workload.model_validate(IN_BF16 | {"optimizer": kind}).optimizer == OPTIMIZERS[kind]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_dumped_workload_is_read_back(kind: str) -> None:
    workload = Workload.model_validate(IN_BF16 | {"optimizer": kind})
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


def test_another_optimizer_has_another_key() -> None:
    assert target(optimizer="muon").target_key_without_fingerprint != STORED_KEY
    assert target(optimizer="muon").canonical()["workload"]["optimizer"]["kind"] == "muon"


def test_an_error_names_the_field_without_the_branch_of_the_union() -> None:
    with pytest.raises(ValidationError) as caught:
        Workload.model_validate(SIZES | {"optimizer": {"kind": "muon", "adamw": {"lr": 0}}})
    assert error_path(caught.value.errors()[0]) == ["optimizer", "adamw", "lr"]


def test_muon_keeps_one_value_of_a_matrix_and_two_of_the_rest() -> None:
    assert (AdamW().state_bytes(100, 80, 4), Muon().state_bytes(100, 80, 4)) == (800, 4 * 80 + 8 * 20)


def test_8_bit_moments_have_a_scale_for_256_elements_whatever_the_masters_are() -> None:
    assert AdamW8bit().state_bytes(256, 0, 4) == AdamW8bit().state_bytes(256, 0, 2) == 2 * 256 + 2 * 4


@pytest.mark.parametrize(
    ("schema", "precision", "says"),
    [
        (
            Workload,
            {"precision": "fp32"},
            r"precision \(fp32\) keeps weights in float32; use precision 'bf16-true', or",
        ),
        (Workload, {}, r"precision \(bf16-mixed\) keeps weights in float32; .* or optimizer 'adamw'"),
        (WorkloadRequest, {}, r"precision \(auto\) never keeps weights in bfloat16; use precision 'bf16-true'"),
    ],
)
def test_rounded_weights_need_their_precision(schema: Any, precision: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=r"optimizer.kind \('adamw-bf16'\) rounds bfloat16 weights, but " + says):
        schema.model_validate(SIZES | {"optimizer": "adamw-bf16"} | precision)


def test_rounded_moments_take_four_bytes() -> None:
    assert AdamWBf16().state_bytes(100, 0, 2) == 400


def test_a_recipe_of_another_optimizer_keeps_the_settings_that_both_have() -> None:
    stated = AdamW(lr=1e-4, beta2=0.99, weight_decay=0.0)
    low = replaced(stated, "adamw-8bit")
    assert isinstance(low, AdamW8bit) and (low.lr, low.beta2, low.weight_decay) == (1e-4, 0.99, 0.0)
    rounded = replaced(low, "adamw-bf16")
    assert isinstance(rounded, AdamWBf16) and rounded.beta2 == 0.99 and replaced(rounded, "adamw") == stated
    muon = replaced(low, "muon")
    assert isinstance(muon, Muon) and muon.adamw == stated
    assert replaced(muon, "adamw") == stated and replaced(muon, "muon") == muon


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


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Fsdp2Config(dp_shard=2), r"strategy.kind \('fsdp2'\) cannot train with 8-bit AdamW: .* use ddp or zero"),
        (Fsdp1Config(dp_shard=2), r"strategy.kind \('fsdp1'\) cannot train with 8-bit AdamW: .* use ddp or zero"),
        (ZeroConfig(stage=2, offload_optimizer=Offload()), r"strategy.offload_optimizer cannot .* leave it out"),
    ],
    ids=["fsdp2", "fsdp1", "offload"],
)
def test_a_backend_that_cannot_train_with_8_bit_adamw_says_why(strategy: Any, message: str) -> None:
    workload = Workload.model_validate(SIZES | {"optimizer": "adamw-8bit"})
    with pytest.raises(ValueError, match=message):
        optimizer_support.check(TrialConfig(strategy=strategy), workload.optimizer)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            Fsdp2Config(dp_shard=2, cpu_offload=True),
            r"strategy.cpu_offload \(true\) cannot train with AdamW with stoch.* false",
        ),
        (
            Fsdp1Config(dp_shard=2, cpu_offload=True),
            r"cpu_offload \(true\) cannot .* not compared over backends; set it to",
        ),
        (
            ZeroConfig(stage=2, offload_optimizer=Offload()),
            r"strategy.offload_optimizer cannot .* own AdamW; leave it out",
        ),
    ],
    ids=["fsdp2", "fsdp1", "zero"],
)
def test_stochastic_rounding_on_the_host_is_rejected(strategy: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimizer_support.check(TrialConfig(strategy=strategy), AdamWBf16())
    without = {"cpu_offload": False} if hasattr(strategy, "cpu_offload") else {"offload_optimizer": None}
    optimizer_support.check(TrialConfig(strategy=strategy.model_copy(update=without)), AdamWBf16())


def test_a_search_leaves_out_backends_without_8_bit_adamw_and_says_so() -> None:
    backends = ("ddp", "zero", "fsdp2")
    assert optimizer_support.trainable_backends(backends, AdamW8bit()) == ("ddp", "zero")
    (note,) = optimizer_support.dropped_note(backends, AdamW8bit())
    assert note.startswith("space.backends (fsdp2) cannot train with 8-bit AdamW: bitsandbytes")
    with pytest.raises(ValueError, match=r"space.backends \(fsdp2\) cannot .* add ddp or zero"):
        optimizer_support.trainable_backends(("fsdp2",), AdamW8bit())

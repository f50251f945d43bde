"""What float16 can train, and the words with which everything else is rejected."""

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.strategies.recipe_support import fp16_support
from shardtune.api_schemas.studies.recipes import RECIPES, changed
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Precision, Workload
from shardtune.service.workers.protocol_limits import why_inexpressible

WORKLOAD = {"sequence_length": 64, "global_batch": 16, "precision": "fp16-mixed"}
CPU = Cluster(device="cpu", gpus_per_node=4, memory_gib=4, host_memory_gib=16)
FLOAT16 = PRECISIONS["fp16-mixed"]


def workload(**changes: object) -> Workload:
    return Workload.model_validate(WORKLOAD | changes)


def test_float16_is_trained_with_float32_masters_and_a_scaled_loss() -> None:
    assert FLOAT16.scales_loss and not FLOAT16.has_low_states
    assert [name for name, precision in PRECISIONS.items() if precision.scales_loss] == ["fp16-mixed"]
    dtypes = {"master_dtype": "float32", "compute_dtype": "float16", "reduce_dtype": "float32"}
    assert Precision.model_validate(dtypes) == FLOAT16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"master_dtype": "float16"}, r"master_dtype \(float16\) with compute_dtype \(float16\).*'fp16-mixed'"),
        ({"reduce_dtype": "float16"}, r"reduce_dtype \(float16\) with compute_dtype \(float16\)"),
        ({"reduce_dtype": "bfloat16"}, r"reduce_dtype \(bfloat16\) with compute_dtype \(float16\)"),
        ({"autocast": True}, r"autocast \(true\) with compute_dtype \(float16\)"),
        ({"compute_dtype": "float32", "reduce_dtype": "float16"}, r"reduce_dtype \(float16\) with compute_dtype \(float32\)"),
    ],
)  # fmt: skip
def test_other_dtypes_beside_float16_are_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Precision.model_validate(FLOAT16.model_dump(exclude={"name"}) | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "muon"}, r"optimizer.kind \('muon'\) with precision \('fp16-mixed'\).*use adamw"),
        ({"optimizer": "adamw-8bit"}, r"optimizer.kind \('adamw-8bit'\).*use adamw"),
        ({"float8": "rowwise"}, r"float8 \('rowwise'\) with precision \('fp16-mixed'\).*or leave out float8"),
        ({"adapter": {"kind": "lora"}}, r"adapter \(LoRA r=16\) with precision .*or leave out adapter"),
    ],
)
def test_workloads_that_float16_cannot_train_are_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fp16_support.check_workload(workload(**changes))
    fp16_support.check_workload(workload(precision="bf16-mixed", **changes))


def test_a_script_of_the_users_own_cannot_have_its_loss_scaled() -> None:
    script = ModelSpec(name="mine", script="train.py")
    with pytest.raises(ValueError, match=r"precision \('fp16-mixed'\) scales the loss, and a script"):
        fp16_support.check_workload(workload(), script)


FSDP2 = {"kind": "fsdp2", "dp_shard": 4}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"strategy": FSDP2, "context_parallel": 2}, r"context_parallel \(2\).*use 1, or another precision"),
        ({"strategy": {"kind": "fsdp2", "dp_shard": 2, "tensor_parallel": 2}}, r"tensor_parallel \(2\)"),
        ({"strategy": {"kind": "fsdp2", "dp_shard": 2, "pipeline_parallel": 2}}, r"pipeline_parallel \(2\)"),
        ({"strategy": FSDP2 | {"expert_parallel": 2}}, r"expert_parallel \(2\)"),
        ({"strategy": FSDP2 | {"cpu_offload": True}}, r"strategy.cpu_offload \(true\).*set it to false"),
        (
            {"strategy": {"kind": "zero", "stage": 1, "offload_optimizer": {}}},
            r"strategy.offload_optimizer at stage 1.*stage 3",
        ),
        (
            {"strategy": {"kind": "zero", "stage": 2, "offload_optimizer": {}}},
            r"strategy.offload_optimizer at stage 2.*leave it",
        ),
        ({"strategy": {"kind": "zero", "stage": 3, "deepcompile": True}}, r"deepcompile \(true\).*set it to false"),
    ],
)
def test_configurations_that_cannot_train_float16_are_rejected(config: dict[str, object], words: str) -> None:
    trial = TrialConfig.model_validate(config)
    with pytest.raises(ValueError, match=words):
        sample_groups.check(trial, CPU, workload())
    assert not fp16_support.can_train(trial, workload())
    assert fp16_support.can_train(trial, workload(precision="bf16-mixed"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp2", "zero"])
def test_every_backend_trains_float16(kind: str) -> None:
    strategy = {"kind": kind, **({"stage": 2} if kind == "zero" else {}), **({"dp_shard": 4} if "fsdp" in kind else {})}
    sample_groups.check(TrialConfig.model_validate({"strategy": strategy}), CPU, workload())


def test_a_search_pinned_to_what_float16_cannot_train_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"space.knobs.cpu_offload \(True\).*leave it out"):
        fp16_support.check_limits({"cpu_offload": True}, FLOAT16)
    fp16_support.check_limits({"cpu_offload": (True, False)}, FLOAT16)
    fp16_support.check_limits({"cpu_offload": True}, PRECISIONS["bf16-mixed"])


def test_studies_may_consider_float16_and_no_device_chooses_it() -> None:
    assert "fp16-mixed" in RECIPES
    assert changed(workload(precision="fp32"), "fp16-mixed").precision == FLOAT16
    assert FLOAT16.is_chosen_only_by_name and not PRECISIONS["bf16-mixed"].is_chosen_only_by_name


def test_older_workers_get_no_task_in_float16() -> None:
    assert "precision (fp16-mixed) came with version 2" in (why_inexpressible(workload(), workload(), 1) or "")
    assert why_inexpressible(workload(), workload(), 2) is None

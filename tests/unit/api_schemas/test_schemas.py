"""Values reject what they cannot mean, and say what to do instead."""

from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.formatting import field_line
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.strategies import Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary, preset
from shardtune.api_schemas.training.workload import (
    PRECISIONS,
    IndivisibleBatch,
    Precision,
    Workload,
    WorkloadRequest,
    gradient_accumulation,
)
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import KnobChange, changes_in, changes_text
from tests.support.values.tuner_inputs import cpu, gpus

PUBLIC_PRESETS = {"gpt2", "gpt2-large", "llama-3.2-1b", "llama-2-7b", "llama-3.1-8b", "llama-2-70b", "qwen3-8b"}


def test_presets_carry_the_public_models_and_a_tiny_one() -> None:
    assert PUBLIC_PRESETS | {"mixtral-8x7b", "llama-tiny"} <= set(preset_names())
    assert preset("llama-2-70b").config["hidden_size"] == 8192


def test_a_model_is_a_preset_name_a_bare_config_or_the_full_form() -> None:
    bare = ModelSpec.model_validate({"model_type": "llama", "hidden_size": 64})
    assert bare.model_type == "llama" and ModelSpec.model_validate("gpt2").name == "gpt2"
    assert ModelSpec.model_validate(bare.model_dump()) == bare


def test_a_config_without_a_model_type_is_told_that_alone() -> None:
    config = {key: value for key, value in preset("llama-tiny").config.items() if key != "model_type"}
    with pytest.raises(ValidationError) as rejected:
        ModelSpec.model_validate(config)
    (error,) = rejected.value.errors()
    assert "model_type (None) must be the name of a transformers architecture; add it" in error["msg"]


@pytest.mark.parametrize("message", ["baseline.zero is no key; did you mean one?", "zero is no key; did you mean one?"])
def test_a_line_names_its_field_once(message: str) -> None:
    line = field_line({"field": "baseline.zero", "value": "zero", "message": message})
    assert line == "baseline.zero is no key; did you mean one?"


def test_an_unknown_preset_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match="llama-2-7b"):
        preset("llama-9")


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"auto_map": {"AutoModel": "evil.py"}}, "auto_map"),
        ({"text_config": [{"auto_map": {}}]}, "auto_map"),
        ({"text_config": {"_attn_implementation": "evil/kernels"}}, "_attn_implementation"),
        ({"model_type": "llama'; import os"}, "model_type"),
    ],
)
def test_code_references_in_a_config_are_rejected(entry: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        ModelSpec(name="x", config={"model_type": "llama", **entry})


@pytest.mark.parametrize("evil", ['x"""', "x\ny", "x'", "$(id)", "x`id`", "x\\", "-rf", "", "x\x1b[2J", "\u202ex"])
def test_names_that_could_be_code_are_rejected_at_the_border(evil: str) -> None:
    block = {"name": "layers.0", "parameters": 1, "largest_parameter": 1, "forward_flops_per_token": None}
    model_summary = {
        "parameters": 1,
        "active_parameters": 1,
        "blocks": [block],
        "block_class": "Block",
        "hidden_size": 1,
    }
    model_summary |= {"forward_flops_per_token": None, "vocab_size": 1, "max_positions": None}
    cluster = {"gpus_per_node": 1, "memory_gib": 1, "host_memory_gib": 1}
    ModelSummary.model_validate(model_summary)
    Cluster.model_validate(cluster)
    for kind, values in (
        (ModelSpec, {"name": evil, "config": {"model_type": "llama"}}),
        (ModelSummary, model_summary | {"block_class": evil}),
        (ModelSummary, model_summary | {"moe_class": evil}),
        (ModelSummary, model_summary | {"blocks": [block | {"name": f"{evil}.0"}]}),
        (Cluster, cluster | {"gpu": evil}),
        (Precision, PRECISIONS["fp32"].model_dump() | {"name": evil}),
    ):
        with pytest.raises(ValidationError):
            kind.model_validate(values)


def test_what_a_rank_said_moves_no_terminal_s_cursor() -> None:
    failure = Failure(kind=FailureKind.CRASH, message="a\x1b[2J\nb\tc\r", traceback="\x9b31m")
    assert (failure.message, failure.traceback) == ("a\ufffd[2J\nb\tc\ufffd", "\ufffd31m")


def test_a_path_in_a_bare_config_becomes_a_name() -> None:
    """A folder that was not meant as a package is no reason to reject the model."""
    for path, name in (("/data/my model/", "/data/my model/"), ('x"""\nimport os', "x-import os"), ('"', "model")):
        assert ModelSpec.model_validate({"model_type": "llama", "_name_or_path": path}).name == name


def test_a_misspelt_knob_is_an_error() -> None:
    with pytest.raises(ValidationError, match="reduce_bucket"):
        TrialConfig.model_validate({"strategy": {"kind": "zero", "stage": 2, "reduce_bucket": 5}})


def test_precisions_are_named_and_unknown_ones_list_the_known() -> None:
    assert (
        Workload.model_validate({"sequence_length": 8, "global_batch": 1, "precision": "fp32"}).precision
        == PRECISIONS["fp32"]
    )
    with pytest.raises(ValidationError, match="bf16-mixed"):
        Workload.model_validate({"sequence_length": 8, "global_batch": 1, "precision": "fp8"})


def test_a_global_batch_that_nothing_divides_names_its_neighbours() -> None:
    assert gradient_accumulation(96, 4, 8) == 3
    with pytest.raises(IndivisibleBatch, match="try 96 or 104"):
        gradient_accumulation(100, 1, 8)


def test_the_mesh_rules_of_fsdp2_hold() -> None:
    with pytest.raises(ValidationError, match="reshard_after_forward"):
        Fsdp2Config(dp_shard=8, reshard_after_forward=3)
    with pytest.raises(ValidationError, match="grad_sync"):
        Fsdp2Config(dp_shard=8, grad_sync="reduce_scatter")
    assert "HSDP 2×4" in Fsdp2Config(dp_replicate=2, dp_shard=4, grad_sync="reduce_scatter").describe()


def test_a_mesh_without_data_ranks_is_not_said_to_be_sharded() -> None:
    layout = Fsdp2Config(dp_shard=1, tensor_parallel=2, pipeline_parallel=2)
    assert layout.describe() == "FSDP2, not sharded, tensor ×2, 2 stages (1f1b)"


def test_what_a_configuration_keeps_or_offloads_in_part_is_said() -> None:
    assert "kept in groups of 2 after forward" in Fsdp2Config(dp_shard=8, reshard_after_forward=2).describe()
    assert Fsdp2Config(dp_shard=8).describe() == "FSDP2, sharded ×8"
    half = {"ratio": 0.5}
    assert (
        ZeroConfig(stage=3, offload_optimizer=half).describe()
        == "ZeRO-3, 0.5 of optimizer offloaded (DeepSpeed's C++ Adam)"
    )
    assert (
        ZeroConfig(stage=2, offload_optimizer=half).describe() == "ZeRO-2, optimizer offloaded (DeepSpeed's C++ Adam)"
    ), "stage 2"


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"sharding_strategy": "HYBRID_SHARD"}, "needs both axes above 1"),
        ({"dp_replicate": 2}, "set dp_replicate to 1"),
        ({"sharding_strategy": "NO_SHARD"}, "set dp_shard to 1"),
        ({"sharding_strategy": "full"}, "FULL_SHARD"),
    ],
)
def test_the_mesh_rules_of_fsdp1_hold(inputs: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Fsdp1Config.model_validate({"dp_shard": 4, **inputs})


def test_fsdp1_accumulates_only_where_torch_adds_gradients_up_as_the_precision_says() -> None:
    mixed, single = PRECISIONS["bf16-mixed"], PRECISIONS["fp32"]
    for policy, offload, precision, remedy in (
        ("last", False, mixed, "use 'every'"),
        ("every", True, single, "use 'last'"),
        ("last", True, mixed, "cpu_offload to false"),
    ):
        config = Fsdp1Config(dp_shard=4, grad_sync=policy, cpu_offload=offload)
        config.check_accumulation(precision, 1)
        with pytest.raises(ValueError, match=remedy):
            config.check_accumulation(precision, 2)
    Fsdp1Config(dp_shard=4).check_accumulation(mixed, 4)
    Fsdp1Config(dp_shard=4, grad_sync="last").check_accumulation(single, 4)


def test_combinations_that_cannot_run_are_rejected_with_a_remedy() -> None:
    with pytest.raises(ValidationError, match="use 'full' or 'none'"):
        TrialConfig(strategy=ZeroConfig(stage=3), activation_checkpointing="selective")
    with pytest.raises(ValidationError, match="use_orig_params"):
        TrialConfig(strategy=Fsdp1Config(dp_shard=2), compile=True)
    with pytest.raises(ValidationError, match=r"deepcompile \(true\) compile the same blocks twice; set one of them"):
        TrialConfig(strategy=ZeroConfig(stage=2, deepcompile=True), compile=True)


def test_deepcompile_is_for_gpus() -> None:
    compiled = ZeroConfig(stage=3, deepcompile=True)
    with pytest.raises(ValueError, match=r"deepcompile \(true\) needs GPUs, .* set it to false"):
        compiled.check_cluster(cpu(2), PRECISIONS["fp32"], 1)
    compiled.check_cluster(gpus(1, 2), PRECISIONS["bf16-mixed"], 1)


def test_parameter_offload_needs_stage_3() -> None:
    with pytest.raises(ValidationError, match="offload_param"):
        ZeroConfig.model_validate({"stage": 2, "offload_param": {}})


def test_equal_values_have_equal_keys_and_different_ones_do_not() -> None:
    first, same = (TrialConfig(strategy=Fsdp2Config(dp_shard=2)) for _ in range(2))
    assert first.content_key() == same.content_key() != first.model_copy(update={"micro_batch": 2}).content_key()


@pytest.mark.parametrize("kind", FailureKind)
def test_every_failure_is_somebodys_fault(kind: FailureKind) -> None:
    config_fault = kind in {FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL, FailureKind.NUMERICS}
    assert Failure(kind=kind, message="x").is_infeasible is config_fault


def test_autocast_is_a_precision_of_its_own_and_keeps_weights_and_gradients_in_the_masters_dtype() -> None:
    mixed, autocast = PRECISIONS["bf16-mixed"], PRECISIONS["bf16-autocast"]
    assert (mixed.weights_dtype, autocast.weights_dtype) == ("bfloat16", "float32")
    dtypes = autocast.model_dump(exclude={"name"})
    assert (
        Precision.model_validate(dtypes) == autocast and Precision.model_validate(dtypes | {"autocast": False}) == mixed
    )
    for change, field in (({"compute_dtype": "float32"}, "autocast"), ({"reduce_dtype": "bfloat16"}, "reduce_dtype")):
        with pytest.raises(ValidationError, match=rf"{field} \("):
            Precision.model_validate(dtypes | change)


def test_cases_of_precisions_without_autocast_keep_the_keys_they_have_always_had() -> None:
    def canonical(precision: str) -> dict[str, Any]:
        workload = Workload(sequence_length=64, global_batch=8, precision=PRECISIONS[precision])
        return TuningTarget(preset("llama-tiny"), workload, cpu(2)).canonical()["workload"]["precision"]

    dtypes = {"master_dtype": "float32", "compute_dtype": "bfloat16", "reduce_dtype": "float32"}
    assert canonical("bf16-mixed") == dtypes and canonical("bf16-autocast") == dtypes | {"autocast": True}


def test_precisions_of_different_training_never_share_a_tuning_target() -> None:
    """Their dtypes are in the key; the name follows from these, and another name for them is the same training."""

    def key(precision: Any) -> str:
        workload = Workload(sequence_length=64, global_batch=8, precision=precision)
        return TuningTarget(preset("llama-tiny"), workload, cpu(2)).target_key_without_fingerprint

    assert len({key(precision) for precision in PRECISIONS.values()}) == len(PRECISIONS)
    # A known name beside other dtypes is dropped on input: it cannot carry them into its own target.
    mislabelled = PRECISIONS["bf16-mixed"].model_dump() | {"name": "bf16-true"}
    request = WorkloadRequest.model_validate({"sequence_length": 64, "global_batch": 8, "precision": mislabelled})
    assert request.precision is not None and request.precision.name == "bf16-mixed"
    assert key(request.precision) == key(PRECISIONS["bf16-mixed"]) != key(PRECISIONS["bf16-true"])


def test_under_autocast_fsdp1_may_reduce_once_a_step() -> None:
    """Gathered parameters are float32 then, and so is what adds up."""
    Fsdp1Config(dp_shard=2, grad_sync="last").check_accumulation(PRECISIONS["bf16-autocast"], 2)


def test_dtypes_spelt_out_need_no_name_and_mean_the_precision_that_has_them() -> None:
    dtypes = {"master_dtype": "float32", "compute_dtype": "bfloat16", "reduce_dtype": "float32"}
    workload_request = WorkloadRequest.model_validate({"sequence_length": 64, "global_batch": 8, "precision": dtypes})
    assert workload_request.precision == PRECISIONS["bf16-mixed"]
    own = Precision.model_validate(dtypes | {"reduce_dtype": "bfloat16"})
    assert own.name == "own" and Precision.model_validate(own.model_dump()) == own


def test_states_below_float32_need_one_dtype_throughout() -> None:
    true = PRECISIONS["bf16-true"]
    assert true.has_low_states and not any(
        PRECISIONS[name].has_low_states for name in PRECISIONS.keys() - {"bf16-true"}
    )
    dtypes = true.model_dump(exclude={"name"})
    assert Precision.model_validate(dtypes) == true
    for name in ("compute_dtype", "reduce_dtype"):
        # Stored studies may have such dtypes: only new ones are checked.
        stored = Precision.model_validate(dtypes | {name: "float32"})
        with pytest.raises(ValueError, match=rf"{name} \(float32\) with master_dtype \(bfloat16\).*'bf16-true'"):
            stored.check_low_states()


def test_a_known_precision_s_name_beside_other_dtypes_is_not_believed() -> None:
    dtypes = PRECISIONS["bf16-true"].model_dump() | {"name": "bf16-mixed"}
    workload = Workload.model_validate({"sequence_length": 8, "global_batch": 1, "precision": dtypes})
    assert workload.precision.name == "bf16-true"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([KnobChange("", "fsdp2", "zero")], "fsdp2 instead of zero"),
        (
            ["first with context parallel", KnobChange("malloc", "keep", "default"), "and 2 more"],
            "first with context parallel; malloc keep instead of default; and 2 more",
        ),
        (["the fastest by prediction"], "the fastest by prediction"),
    ],
)
def test_the_changes_that_a_trial_tests_are_read_as_they_were_written(parts: list[KnobChange | str], text: str) -> None:
    assert changes_text(parts) == text and changes_in(text) == parts

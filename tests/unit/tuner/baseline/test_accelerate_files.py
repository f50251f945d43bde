"""Accelerate's files as baselines: read as Accelerate reads them."""

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from tests.unit.tuner.baseline.library_files import ACCELERATE, AUTOCAST, FP32, FSDP, TRAINER, TWO_NODES, read, strategy


def test_accelerate_without_sharding_is_ddp() -> None:
    inputs = ACCELERATE | {"distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 2, "micro_batch": 4}
    config, notes = read(inputs)
    assert config == TrialConfig(strategy=DdpConfig(), micro_batch=4)
    assert any("state bf16-autocast" in note for note in notes)
    assert read(inputs, AUTOCAST).config == config
    assert any("is autocast: measured so (precision bf16-autocast)" in note for note in read(inputs, AUTOCAST).notes)


def test_binding_to_cores_is_noted_where_accelerate_would_do_it() -> None:
    inputs = ACCELERATE | {"distributed_type": "MULTI_GPU", "downcast_bf16": "no", "num_machines": 2}
    bound, unbound = (
        read(inputs | {"enable_cpu_affinity": value}, AUTOCAST, TWO_NODES).notes for value in (True, False)
    )
    assert [*unbound, "baseline.enable_cpu_affinity is not applied: measured with ranks on any core"] == [*bound]
    assert not any("downcast" in note for note in unbound)


def test_accelerates_fsdp1_is_read_with_its_own_defaults() -> None:
    """Defaults of `accelerate launch`: no gathering ahead and the original parameters, unless the file says so;
    `accumulate` reduces once."""
    assert strategy(FSDP | {"mixed_precision": "no"}, FP32) == Fsdp1Config(
        dp_shard=2, backward_prefetch=None, use_orig_params=True, grad_sync="last"
    )
    assert not strategy(FSDP | {"fsdp_config": {"fsdp_use_orig_params": False}}).use_orig_params
    section = {
        "fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_backward_prefetch": "BACKWARD_POST",
        "fsdp_forward_prefetch": True, "fsdp_use_orig_params": True, "fsdp_activation_checkpointing": True,
    }  # fmt: skip
    config, notes = read(FSDP | {"fsdp_config": section})
    assert config is not None and config.activation_checkpointing == "full"
    assert config.strategy == Fsdp1Config(
        dp_shard=2, sharding_strategy="SHARD_GRAD_OP", backward_prefetch="BACKWARD_POST", forward_prefetch=True,
        use_orig_params=True,
    )  # fmt: skip
    assert any("no_sync" in note for note in notes) and any("reduces gradients in bfloat16" in note for note in notes)


def test_a_file_that_wraps_no_block_is_told_that_trials_do() -> None:
    """Accelerate's default is NO_WRAP; the Trainer's wraps each block."""
    absent = "auto_wrap_policy is absent, which means the whole model as one unit in Accelerate"
    policies: tuple[dict[str, str], ...] = ({}, {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"})
    bare, wrapped = (
        "\n".join(read(FSDP | {"fsdp_config": {"fsdp_version": 2, **policy}}).notes) for policy in policies
    )
    assert absent in bare and "auto_wrap_policy" not in wrapped
    assert "auto_wrap_policy" not in "\n".join(read(TRAINER | {"fsdp": True}).notes)


def test_hybrid_groups_are_nodes() -> None:
    inputs = FSDP | {"fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}}
    assert strategy(inputs, cluster=TWO_NODES).dp_replicate == 2
    text = read(inputs)
    assert text.config is not None and isinstance(text.config.strategy, Fsdp1Config)
    assert text.config.strategy.sharding_strategy == "FULL_SHARD" and any("one node" in note for note in text.notes)


def test_accelerates_fsdp2_takes_its_mesh_and_names_what_has_no_effect() -> None:
    section = {"fsdp_version": 2, "fsdp_reshard_after_forward": False, "fsdp_backward_prefetch": "BACKWARD_PRE"}
    mesh = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2}
    inputs = FSDP | {"fsdp_config": section, "parallelism_config": mesh}
    config, notes = read(inputs, cluster=TWO_NODES)
    assert config is not None
    assert config.strategy == Fsdp2Config(dp_replicate=2, dp_shard=2, reshard_after_forward=False, grad_sync="last")
    assert any("backward_prefetch has no effect under FSDP2" in note for note in notes)


def test_accelerates_deepspeed_is_read_from_its_words_or_its_file() -> None:
    words = {"zero_stage": 3, "offload_optimizer_device": "cpu", "zero3_init_flag": True, "colour": "red"}
    inputs = ACCELERATE | {"distributed_type": "DEEPSPEED"}
    config, notes = read(inputs | {"deepspeed_config": words})
    assert config is not None
    assert config.strategy == ZeroConfig(stage=3, offload_optimizer=Offload(pin_memory=False))
    assert any("colour" in note for note in notes)
    file = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    assert strategy(inputs | {"deepspeed_config": {"deepspeed_config_file": file}}).stage == 2
    unstated, notes = read(inputs | {"deepspeed_config": {"gradient_clipping": 1.0}})
    assert unstated is not None and unstated.strategy == ZeroConfig(stage=2, overlap_comm=False)
    assert "baseline.deepspeed_config.zero_stage is absent; measured with Accelerate's default 2" in notes


def test_an_optimizer_on_the_host_that_is_not_deepspeeds_is_noted() -> None:
    """torch's AdamW on the host, which the file allows, is slower."""
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    gpus = Cluster(gpus_per_node=2, memory_gib=80, host_memory_gib=800)
    said = "baseline.zero_force_ds_cpu_optimizer (false) is not applied"
    for section, stated, is_said in ((zero, False, True), (zero, True, False), ({"stage": 2}, False, False)):
        file = {"zero_optimization": section, "bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": stated}
        assert any(note.startswith(said) for note in read(file, cluster=gpus).notes) == is_said

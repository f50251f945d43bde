"""Accelerate's and transformers' files as baselines: read as their libraries read them, contradictions named."""

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError
from shardtune.tuner.baseline import ResolvedBaseline, implied_precision, resolve_with_notes, training_arguments

EXAMPLES = Path(__file__).parents[4] / "examples"
BF16 = Workload(sequence_length=64, global_batch=16)
FP32 = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"])
TRUE = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-true"])
AUTOCAST = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-autocast"])
TWO_RANKS = Cluster(device="cpu", gpus_per_node=2, memory_gib=2, host_memory_gib=8)
TWO_NODES = Cluster(gpus_per_node=2, nodes=2, memory_gib=80, host_memory_gib=800)
ACCELERATE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "bf16"}
FSDP: dict[str, Any] = ACCELERATE | {"distributed_type": "FSDP"}
TRAINER: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 8, "bf16": True, "max_grad_norm": 1}


def read(inputs: dict[str, Any], workload: Workload = BF16, cluster: Cluster = TWO_RANKS) -> ResolvedBaseline:
    return resolve_with_notes(inputs, workload, cluster)


def strategy(inputs: dict[str, Any], workload: Workload = BF16, cluster: Cluster = TWO_RANKS) -> Any:
    config = read(inputs, workload, cluster).config
    assert config is not None
    return config.strategy


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


def test_trainers_arguments_give_ddp_with_its_options() -> None:
    inputs = TRAINER | {"ddp_bucket_cap_mb": 50, "gradient_checkpointing": True, "logging_steps": 5, "colour": "red"}
    config, notes = read(inputs)
    ddp = DdpConfig(bucket_cap_mb=50)
    assert config == TrialConfig(strategy=ddp, micro_batch=8, activation_checkpointing="full")
    assert any("baseline.colour" in note for note in notes) and not any("logging_steps" in note for note in notes)


def test_a_static_graph_that_accumulates_without_reductions_is_rejected() -> None:
    """torch 2.13 fails in the reducer (`expect_autograd_hooks_`), or skips reductions."""
    whole = TRAINER | {"ddp_static_graph": True}
    assert strategy(whole).static_graph
    twice = whole | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    with pytest.raises(ValueError, match=r"baseline static_graph \(true\) with 2 micro batches .*set it to false"):
        read(twice)
    kwargs = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert strategy(twice | {"accelerator_config": kwargs}).static_graph


@pytest.mark.parametrize("sharding", [{}, {"fsdp": True}], ids=["ddp", "fsdp2"])
def test_the_trainer_reduces_each_micro_batch_where_it_is_told_to(sharding: dict[str, Any]) -> None:
    kwargs = {"gradient_accumulation_kwargs": {"sync_each_batch": True}, "split_batches": False}
    inputs = TRAINER | sharding | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    config, notes = read(inputs | {"accelerator_config": kwargs})
    assert config is not None and config.strategy.sync_policy == "every"
    assert "baseline.accelerator_config.split_batches is not applied" in notes
    assert not any("sync_each_batch" in note or note == "baseline.accelerator_config is not applied" for note in notes)
    assert strategy(inputs).sync_policy == "last"


def test_the_trainer_checkpoints_every_nth_block_where_it_is_told_to() -> None:
    inputs = TRAINER | {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 3}}
    config, notes = read(inputs)
    assert config is not None and (config.activation_checkpointing, config.checkpoint_every) == ("full", 3)
    assert "the Trainer checkpoints blocks 1, 4, …; measured with blocks 3, 6, …" in notes
    with pytest.raises(ValueError, match=r"activation_checkpointing_kwargs.every_n_layers \(0\) must be at least 1"):
        read(inputs | {"activation_checkpointing_kwargs": {"every_n_layers": 0}})


@pytest.mark.parametrize("key", ["packing", "completion_only_loss", "use_peft"])
def test_a_file_of_trl_checkpoints_unless_it_says_otherwise(key: str) -> None:
    """TRL's SFTConfig has another default than TrainingArguments."""
    said = "baseline.gradient_checkpointing is absent, which means true in TRL; measured with full checkpointing"
    config, notes = read(TRAINER | {key: False})
    assert config is not None and config.activation_checkpointing == "full" and said in notes
    for own in ({"gradient_checkpointing": False}, {"activation_checkpointing": False}):
        stated, notes = read(TRAINER | {key: False, **own})
        assert stated is not None and stated.activation_checkpointing == "none" and said not in notes
    plain = read(TRAINER)
    assert plain.config is not None and plain.config.activation_checkpointing == "none"
    of_fsdp = read(TRAINER | {key: False, "fsdp": True, "fsdp_config": {"activation_checkpointing": False}}).config
    assert of_fsdp is not None and of_fsdp.activation_checkpointing == "none"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            {"use_peft": False},
            "baseline.loss_type is absent, which means nll in TRL, a loss in chunks; measured with the",
        ),
        (
            {"loss_type": "nll"},
            "baseline.loss_type (nll), a loss in chunks; measured with the logits of a whole micro batch",
        ),
        ({"loss_type": "chunked_nll"}, "baseline.loss_type (chunked_nll), a loss in chunks; measured with the logits"),
        (
            {"use_liger_kernel": True},
            "baseline.use_liger_kernel (true) is not applied: trials have none of its kernels",
        ),
    ],
)
def test_a_loss_without_all_logits_in_memory_is_noted_with_the_knob_that_has_it(own: dict[str, Any], said: str) -> None:
    config, notes = read(TRAINER | own)
    assert config is not None and config.loss == "full"
    (note,) = [note for note in notes if note.startswith(said)]
    assert note.endswith("a baseline in Shardtune's words may have loss 'chunked'")
    assert not any("chunk" in note or "liger" in note for note in read(TRAINER | {"use_liger_kernel": False}).notes)


@pytest.mark.parametrize("loss", ["dft", "sigmoid", ["ipo", "sft"]])
def test_a_loss_that_trains_something_else_is_rejected(loss: Any) -> None:
    with pytest.raises(
        ValueError, match=r"baseline\.loss_type \(.*\) changes what is trained, .*; use nll, or drop it"
    ):
        read(TRAINER | {"loss_type": loss})


@pytest.mark.parametrize(
    ("key", "intended"),
    [
        ("per_device_train_batchsize", "per_device_train_batch_size"),
        ("gradient_accumulation_step", "gradient_accumulation_steps"),
        ("learningrate", "learning_rate"),
    ],
)
@pytest.mark.parametrize("around", [{"output_dir": "out"}, {"bf16": True}])
def test_a_misspelt_training_argument_is_named_as_such(key: str, intended: str, around: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"baseline.{key} is no key of TrainingArguments; did you mean {intended}\?"):
        read(around | {key: 2})


def test_a_misspelt_batch_size_alone_is_one_of_training_arguments() -> None:
    with pytest.raises(ValueError, match="did you mean per_device_train_batch_size"):
        read({"per_device_train_batchsize": 2})


def test_no_field_of_training_arguments_is_taken_for_a_misspelling() -> None:
    package = find_spec("transformers")
    assert package is not None and package.origin is not None
    tree = ast.parse((Path(package.origin).parent / "training_args.py").read_text())
    next_run = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments")
    fields = [
        node.target.id
        for node in next_run.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert "learning_rate" in fields and [name for name in fields if training_arguments.intended_field(name)] == []


def test_defaults_of_training_arguments_are_told_from_what_the_file_says() -> None:
    with pytest.raises(ValueError, match=r"\(8 \(default\) × 4 × 2 = 64\), but the workload's global_batch is 16"):
        read({"output_dir": "out", "bf16": True, "gradient_accumulation_steps": 4})


def test_another_optimizer_comes_with_the_line_to_add_to_the_study() -> None:
    with pytest.raises(ValueError, match="make them equal") as rejected:
        read(TRAINER | {"learning_rate": 0.001, "weight_decay": 0.0})
    line = '"optimizer": {"lr": 0.001, "weight_decay": 0.0}'
    assert f"({line} in the study's workload), or drop baseline.learning_rate" in str(rejected.value)
    adopted = BF16.model_validate(BF16.model_dump() | json.loads(f"{{{line}}}"))
    assert read(TRAINER | {"learning_rate": 0.001, "weight_decay": 0.0}, adopted).config is not None


def test_the_trainers_fsdp_is_version_2_and_its_legacy_words_are_read() -> None:
    assert strategy(TRAINER | {"fsdp": True}) == Fsdp2Config(dp_shard=2, grad_sync="last")
    assert strategy(TRAINER | {"fsdp": "shard_grad_op auto_wrap"}).reshard_after_forward is False
    old = strategy(TRAINER | {"fsdp": "full_shard", "fsdp_config": {"version": 1, "limit_all_gathers": False}})
    assert old == Fsdp1Config(dp_shard=2, backward_prefetch=None, use_orig_params=True, limit_all_gathers=False)


def test_the_trainers_deepspeed_is_read_as_deepspeed_reads_it() -> None:
    inputs = TRAINER | {"deepspeed": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}}
    config, notes = read(inputs)
    assert not any("batch size" in note for note in notes)
    assert config is not None and isinstance(config.strategy, ZeroConfig) and config.micro_batch == 8


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


@pytest.mark.parametrize(
    ("inputs", "owner"),
    [
        (TRAINER, "the Trainer under DDP"),
        (ACCELERATE | {"distributed_type": "MULTI_GPU"}, "Accelerate under DDP"),
        (ACCELERATE, "Accelerate under DDP"),
        ({"zero_optimization": {"stage": 2}, "torch_autocast": {"enabled": True}}, "DeepSpeed by torch_autocast"),
        (TRAINER | {"fsdp": True}, None),
        (TRAINER | {"deepspeed": {"zero_optimization": {"stage": 2}}}, None),
        (TRAINER | {"bf16": False}, None),
        (TRAINER | {"bf16": "yes"}, None),
        (FSDP, None),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, None),
        ({"strategy": {"kind": "ddp"}}, None),
        (None, None),
    ],
)
def test_a_file_that_trains_under_autocast_means_that_precision(
    inputs: dict[str, Any] | None, owner: str | None
) -> None:
    actual_implied_precision = implied_precision(inputs)
    assert (actual_implied_precision is None) == (owner is None)
    if actual_implied_precision is not None:
        precision, note = actual_implied_precision
        assert precision == PRECISIONS["bf16-autocast"] and f"because {owner} computes" in note


def test_bf16_under_ddp_names_the_precision_it_is() -> None:
    with pytest.raises(ValueError, match=r"bf16 \(true\).*computes in float32.*'bf16-autocast'"):
        read(TRAINER, FP32)
    with pytest.raises(ValueError, match=r"bf16 \(true\).*'bf16-mixed'"):
        read(TRAINER | {"fsdp": True}, FP32)


def test_sharded_files_cast_weights_where_autocast_is_measured() -> None:
    notes = read(TRAINER | {"fsdp": True}, AUTOCAST).notes
    assert any(
        "casts FSDP's weights to bfloat16; measured with float32 weights under autocast" in note for note in notes
    )


DS_AUTOCAST = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}


def test_deepspeeds_autocast_is_read_where_gradients_are_reduced_in_float32() -> None:
    zero: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    assert strategy(zero | {"torch_autocast": DS_AUTOCAST}, AUTOCAST).stage == 2
    assert any("torch_autocast.enabled is absent" in note for note in read(zero, AUTOCAST).notes)
    for change, theirs, remedy in (
        ({"enabled": False}, "torch_autocast.enabled (false)", "true"),
        ({"dtype": "float16"}, "torch_autocast.dtype ('float16')", "bfloat16"),
        ({"lower_precision_safe_modules": None}, "lower_precision_safe_modules (None)", "write []"),
    ):
        with pytest.raises(ValueError) as rejected:
            read(zero | {"torch_autocast": DS_AUTOCAST | change}, AUTOCAST)
        assert theirs in str(rejected.value) and remedy in str(rejected.value)
    with pytest.raises(ValueError, match=r"bf16.enabled \(true\) casts weights.*'bf16-mixed'"):
        read(zero | {"bf16": {"enabled": True}}, AUTOCAST)
    with pytest.raises(ValueError, match=r"torch_autocast.enabled \(true\).*'bf16-autocast'"):
        read(zero | {"bf16": {"enabled": True}, "torch_autocast": DS_AUTOCAST}, BF16)


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


def test_mixed_precision_of_a_library_contradicts_states_below_float32() -> None:
    """Of bf16-true the model has the dtype, which the file does not show."""
    ddp = ACCELERATE | {"distributed_type": "MULTI_CPU", "num_processes": 2, "micro_batch": 4}
    for inputs, change in ((ddp, {"mixed_precision": "no"}), (TRAINER, {"bf16": False})):
        with pytest.raises(ValueError, match=r"keeps float32 states, but .*'bf16-true'.*set it to false"):
            read(inputs, TRUE)
        assert any("measured in bfloat16 throughout" in note for note in read(inputs | change, TRUE).notes)


def test_deepspeeds_switches_for_states_must_agree_with_the_precision() -> None:
    zero = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2}
    switches = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert strategy(zero | {"bf16": {"enabled": True, **switches}}, TRUE).stage == 2
    with pytest.raises(ValueError, match=r"bf16_master_weights_and_grads \(absent\).*'bf16-true'.*set it to true"):
        read(zero | {"bf16": {"enabled": True}}, TRUE)
    with pytest.raises(ValueError, match=r"bf16_optimizer_states \(false\).*set it to true"):
        read(zero | {"bf16": {"enabled": True, **switches, "bf16_optimizer_states": False}}, TRUE)
    with pytest.raises(ValueError, match=r"\(true\).*use precision 'bf16-true'"):
        read(zero | {"bf16": {"enabled": True, **switches}})


AO = FSDP | {"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "enable_fsdp_float8_all_gather": False}}


def test_accelerates_fp8_by_torchao_is_read_as_the_recipe() -> None:
    float8 = BF16.model_copy(update={"float8": "tensorwise"})
    config, notes = read(AO, float8)
    assert config is not None and config.backend in ("fsdp1", "fsdp2")
    assert any("leaves out the model's first and last linear layer" in note for note in notes)
    assert not any("all_gather" in note or "fp8_config is not applied" in note for note in notes)
    assert any("pad_inner_dim is true by file or default; measured as false" in note for note in notes)
    assert strategy(ACCELERATE | {"mixed_precision": "fp8"}, float8) == DdpConfig()


@pytest.mark.parametrize(
    ("inputs", "recipe", "words"),
    [
        (AO, None, "but the workload's float8 is none; state float8 'tensorwise', or use bf16"),
        (AO, "rowwise", "but the workload's float8 is 'rowwise'; state float8 'tensorwise'"),
        (AO | {"fp8_config": {"backend": "TE"}}, "tensorwise", "backend ('te') is not measured; use AO (torchao)"),
    ],
)
def test_other_fp8_than_the_workloads_is_rejected(inputs: dict[str, Any], recipe: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read(inputs, BF16.model_copy(update={"float8": recipe}))

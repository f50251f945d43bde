"""The exported files as their consumers read them: DeepSpeed's and Accelerate's own classes, and ours."""

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from deepspeed.runtime.config import DeepSpeedConfig
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.tuner.export import files
from shardtune.tuner.export.backends import selective
from shardtune.workers.blocks import checkpointing
from tests.support.values.synthetic_studies import contender_of, study_of

EIGHT_GPUS = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
TWO_NODES = EIGHT_GPUS.model_copy(update={"nodes": 2})
EVERY_KIND = [
    TrialConfig(strategy=DdpConfig(), activation_checkpointing="selective", compile=True),
    TrialConfig(
        strategy=Fsdp1Config(dp_replicate=2, dp_shard=4, sharding_strategy="_HYBRID_SHARD_ZERO2", use_orig_params=True),
        activation_checkpointing="full",
        compile=True,
    ),
    TrialConfig(strategy=Fsdp2Config(dp_replicate=2, dp_shard=4, grad_sync="reduce_scatter", cpu_offload=True)),
    TrialConfig(strategy=ZeroConfig(stage=3, offload_param=Offload(), zero_hpz_partition_size=2)),
    TrialConfig(strategy=ZeroConfig(stage=2), context_parallel=2, micro_batch=2),
    TrialConfig(strategy=Fsdp2Config(dp_replicate=2, dp_shard=2, tensor_parallel=2), context_parallel=2),
    TrialConfig(
        strategy=Fsdp2Config(dp_shard=2, tensor_parallel=2, pipeline_parallel=2, pipeline_schedule="gpipe"),
        context_parallel=2,
        micro_batch=2,
    ),
    TrialConfig(
        strategy=Fsdp2Config(dp_shard=2, dp_replicate=2, expert_parallel=2, pipeline_parallel=2), micro_batch=2
    ),
]


def export(config: TrialConfig, cluster: Cluster = EIGHT_GPUS, precision: str = "bf16-mixed") -> dict[str, str]:
    study = study_of("mixtral-tiny", precision, cluster, global_batch=cluster.world_size * 4)
    return files(study, contender_of(config))


@pytest.mark.parametrize("config", EVERY_KIND, ids=lambda config: config.backend)
def test_the_trial_is_kept_and_the_script_is_python(config: TrialConfig) -> None:
    contents = export(config)
    assert TrialTask.model_validate_json(contents["config.json"]).config == config
    ast.parse(contents["train_snippet.py"])
    assert "$" not in contents["train_snippet.py"]
    loop = contents["train_snippet.py"].partition("data = batches")[2]
    assert loop.index("trainer.step(data)") < loop.index("synchronize()") < loop.index("report(step - 1")
    assert max(len(line) for line in contents["train_snippet.py"].splitlines()) <= 120
    assert ("ds_config.json" in contents) == (config.backend == "zero")


@pytest.mark.parametrize("config", EVERY_KIND[:4], ids=lambda config: config.backend)
def test_under_autocast_weights_stay_as_they_are_and_forward_alone_is_cast(config: TrialConfig) -> None:
    contents = export(config, precision="bf16-autocast")
    script = contents["train_snippet.py"]
    ast.parse(script)
    assert "parametrize" not in script and "param_dtype=torch.bfloat16" not in script
    if config.backend == "zero":
        document = json.loads(contents["ds_config.json"])
        assert document["torch_autocast"] == {
            "enabled": True,
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        } and document["bf16"] == {"enabled": False}
        return
    lines = [line.strip() for line in script.splitlines()]
    at = lines.index("with torch.autocast(tokens.device.type, torch.bfloat16):")
    assert lines[at + 1].startswith("loss = ") and lines[at + 2].startswith("(loss / ACCUMULATION).backward()")
    file = contents["accelerate.yaml"]
    # Of DDP Accelerate's own bf16 is autocast; of FSDP it casts the weights.
    assert f"mixed_precision: {'bf16' if config.backend == 'ddp' else 'no'}" in file.replace("'", "")
    assert ("torch.autocast(accelerator.device.type" in file) == (config.backend != "ddp")


@pytest.mark.parametrize("config", EVERY_KIND[:4], ids=lambda config: config.backend)
def test_under_bf16_true_everything_is_in_bfloat16_and_nothing_casts(config: TrialConfig) -> None:
    contents = export(config, precision="bf16-true")
    script, file = contents["train_snippet.py"], contents["accelerate.yaml"]
    ast.parse(script)
    assert "parametrize" not in script and "param_dtype=torch.bfloat16" not in script and "autocast" not in script
    assert "dtype=torch.bfloat16, trust_remote_code" in script
    assert "load the model with dtype=torch.bfloat16" in file
    if config.backend == "zero":
        document = json.loads(contents["ds_config.json"])
        assert document["bf16"] == {
            "enabled": True,
            "bf16_master_weights_and_grads": True,
            "bf16_optimizer_states": True,
        } and document["data_types"] == {"grad_accum_dtype": "bf16"}
        assert ("fp32_optimizer_states=False" in script) == (config.strategy.offload_optimizer is not None)
    else:
        assert "mixed_precision: no" in file.replace("'", "")


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_reads_what_we_write(stage: int, precision: str) -> None:
    offload = Offload(device="cpu", ratio=0.5 if stage == 3 else 1.0)
    strategy = ZeroConfig(stage=stage, reduce_bucket_size=12_345, overlap_comm=False, offload_optimizer=offload)
    workload = Workload(sequence_length=32, global_batch=6, precision=PRECISIONS[precision], max_grad_norm=None)
    # DeepSpeed reads the world size from its launcher; outside of one it is 1.
    read = DeepSpeedConfig(strategy.to_deepspeed(workload, micro_batch=2, accumulation=3))
    assert (read.zero_config.stage, read.zero_config.reduce_bucket_size, read.zero_config.overlap_comm) == (
        stage,
        12_345,
        False,
    )
    assert read.zero_config.offload_optimizer.ratio == offload.ratio
    bf16, is_low = read.bfloat16_config, precision == "bf16-true"
    assert bf16.enabled == (precision == "bf16-mixed" or is_low)
    assert read.float16_config.enabled == (precision == "fp16-mixed") and read.float16_config.loss_scale == 0
    assert bf16.bf16_master_weights_and_grads == bf16.bf16_optimizer_states == is_low
    assert not read.timers_config.enabled, "it would wait for the device twice in each micro batch"
    assert read.gradient_clipping == 0 and read.grad_accum_dtype == ("bf16" if is_low else "fp32")


def accelerate_environment(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[ClusterConfig, dict[str, str]]:
    """The file as Accelerate reads it, and what its launcher would give every rank."""
    path = folder / "accelerate.yaml"
    path.write_text(text)
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    environment = prepare_multi_gpu_env(arguments)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_config_from_file(str(path)), environment


def test_accelerate_reads_hsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrialConfig(
        strategy=Fsdp2Config(dp_replicate=2, dp_shard=4, reshard_after_forward=False), activation_checkpointing="full"
    )
    file, _ = accelerate_environment(tmp_path, export(config)["accelerate.yaml"], monkeypatch)
    assert (file.num_processes, file.mixed_precision) == (8, "bf16")
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.activation_checkpointing) == (2, False, True)
    assert plugin.transformer_cls_names_to_wrap == ["MixtralDecoderLayer"]
    mesh = ParallelismConfig()
    assert (mesh.dp_replicate_size, mesh.dp_shard_size) == (2, 4)


def test_accelerate_reads_fsdp1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Fsdp1Config(
        dp_replicate=2, dp_shard=4, sharding_strategy="_HYBRID_SHARD_ZERO2", backward_prefetch="BACKWARD_POST",
        forward_prefetch=True, use_orig_params=True, limit_all_gathers=False, cpu_offload=False,
    )  # fmt: skip
    text = export(TrialConfig(strategy=strategy, activation_checkpointing="full"))["accelerate.yaml"]
    accelerate_environment(tmp_path, text, monkeypatch)
    for name in ("CPU_RAM_EFFICIENT_LOADING", "SYNC_MODULE_STATES"):
        monkeypatch.setenv(f"FSDP_{name}", "false")  # the plugin looks for the GPU to broadcast from
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 1 and plugin.sharding_strategy is ShardingStrategy._HYBRID_SHARD_ZERO2
    assert plugin.backward_prefetch is BackwardPrefetch.BACKWARD_POST
    assert (plugin.forward_prefetch, plugin.use_orig_params, plugin.activation_checkpointing) == (True, True, True)
    assert plugin.transformer_cls_names_to_wrap == ["MixtralDecoderLayer"] and plugin.limit_all_gathers
    for words in ("limit_all_gathers=False", "groups of 4 ranks", "torch.float32"):
        assert words in text


def test_accelerate_reads_the_deepspeed_file_beside_it(tmp_path: Path) -> None:
    contents = export(TrialConfig(strategy=ZeroConfig(stage=3)))
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    section = load_config_from_file(str(tmp_path / "accelerate.yaml")).deepspeed_config
    assert section["zero3_init_flag"] is True
    plugin = DeepSpeedPlugin(hf_ds_config=str(tmp_path / section["deepspeed_config_file"]), zero3_init_flag=True)
    assert plugin.zero_stage == 3
    assert plugin.deepspeed_config["zero_optimization"] == json.loads(contents["ds_config.json"])["zero_optimization"]


def test_several_nodes_meet_at_the_first() -> None:
    launch = export(TrialConfig(strategy=DdpConfig()), TWO_NODES)["launch.sh"]
    assert "--nnodes 2 --nproc-per-node 8" in launch and "${MASTER_ADDR:?" in launch


SLURM = {
    "scontrol": 'if [ "$1" = show ] && [ "$2" = job ]; then echo "JobId=7 Command=$JOB_FILE --steps 3 X=1"; else printf "n4\\nn5\\n"; fi',
    "srun": 'shift 2; for node in 0 1; do SLURM_NODEID=$node "$@"; done',
}
"""Two lines in which the script requests resources from Slurm; tests/lab runs it through a real one."""


def test_slurm_runs_the_launcher_on_every_node(tmp_path: Path) -> None:
    assert "launch.sbatch" not in export(TrialConfig(strategy=DdpConfig()))
    script = export(TrialConfig(strategy=DdpConfig()), TWO_NODES)["launch.sbatch"]
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --gpus-per-node=8\n" in script
    job, bin_ = tmp_path / "best" / "launch.sbatch", tmp_path / "bin"
    programs = {bin_ / name: f"#!/bin/sh\n{text}\n" for name, text in SLURM.items()}
    says = '#!/bin/sh\necho "node $NODE_RANK meets at $MASTER_ADDR: $*"\n'
    for path, text in {**programs, job: script, job.with_name("launch.sh"): says}.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "JOB_FILE": str(job), "SLURM_JOB_ID": "7"}
    environment |= {"SLURM_JOB_NODELIST": "n[4-5]", "SLURM_SUBMIT_DIR": "/elsewhere"}
    done = subprocess.run(
        ["bash", "-s", "--", "--steps", "3"], input=script, env=environment, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "node 0 meets at n4: --steps 3\nnode 1 meets at n4: --steps 3\n", done.stderr


def test_what_accelerate_cannot_say_is_said_in_comments() -> None:
    strategy = Fsdp2Config(dp_shard=8, forward_prefetch=2, blocks_per_unit=3, reshard_after_forward=4)
    text = export(TrialConfig(strategy=strategy, activation_checkpointing="selective"))["accelerate.yaml"]
    for words in ("forward_prefetch=2", "blocks_per_unit=3", "reshard_after_forward=4", "selective", "torch.float32"):
        assert words in text


def test_the_script_checkpoints_the_blocks_that_the_ranks_do() -> None:
    config = TrialConfig(strategy=DdpConfig(), activation_checkpointing="full", checkpoint_every=3, compile=True)
    contents = export(config)
    ast.parse(contents["train_snippet.py"])
    blocks: list[Any] = [torch.nn.Linear(1, 1) for _ in range(7)]
    before = [block.forward for block in blocks]
    checkpointing.apply(blocks, "full", 3)
    changed = [block for block, forward in zip(blocks, before, strict=True) if block.forward != forward]
    assert changed == blocks[2::3] and "in model.get_submodule(BLOCKS)[2 :: 3]:" in contents["train_snippet.py"]
    assert "gradient_checkpointing_enable" not in contents["accelerate.yaml"]
    assert "full checkpointing of every 3rd block" in contents["accelerate.yaml"]


def test_the_script_keeps_the_operators_that_the_ranks_keep() -> None:
    assert {f"{name}.default" for name in selective.SAVED_OPERATORS} == {*checkpointing._SAVED_NAMES}
    ours = {"PRODUCTS": checkpointing._PRODUCTS, "_ATTENTION": checkpointing._ATTENTION}
    for names, operators in ours.items():
        packets = (getattr(torch.ops.aten, name, None) for name in getattr(selective, names))
        assert {packet.default for packet in packets if packet is not None} == operators

"""Comments of `accelerate.yaml` describe one way to train the measured configuration, and a line that starts it."""

import re

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.tuner.export import files
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

EIGHT = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)


def written(config: TrialConfig, cluster: Cluster = EIGHT, *, of_a_script: bool = False) -> dict[str, str]:
    study = study_of("mixtral-tiny", "bf16-mixed", cluster, global_batch=cluster.world_size * 4)
    if of_a_script:
        spec = study.spec.model_copy(update={"model": ModelSpec(name="mine", script="mine")})
        study = study.model_copy(update={"spec": spec})
    return files(study, contender_of(config))


@pytest.mark.parametrize("kind", [DdpConfig, lambda **sync: Fsdp1Config(dp_shard=8, **sync)], ids=["ddp", "fsdp1"])
def test_accumulation_is_told_once_and_reduces_as_often_as_was_measured(kind) -> None:
    every = written(TrialConfig(strategy=kind(grad_sync="every")))["accelerate.yaml"]
    assert every.count("accelerator.accumulate") == every.count("Accelerator(g") == 1
    plugin = "GradientAccumulationPlugin(num_steps=4, sync_each_batch=True)"
    assert f"Accelerator(gradient_accumulation_plugin={plugin}), with accelerator.accumulate(model)" in every
    last = written(TrialConfig(strategy=kind(grad_sync="last")))["accelerate.yaml"]
    assert "Accelerator(gradient_accumulation_steps=4), with accelerator.accumulate(model)" in last


def test_ddp_s_buffers_stay_on_their_ranks_as_measured() -> None:
    """Accelerate's default broadcasts them before each forward."""
    comments = written(TrialConfig(strategy=DdpConfig()))["accelerate.yaml"]
    assert re.search(r"DistributedDataParallelKwargs\(.*broadcast_buffers=False\)", comments)


def test_only_files_that_are_there_start_it() -> None:
    ddp = TrialConfig(strategy=DdpConfig())
    assert "# Start it with: ./launch.sh accelerate YOUR_SCRIPT.py" in written(ddp)["accelerate.yaml"]
    own = written(ddp, of_a_script=True)
    assert "launch.sh" not in own and "launch.sh" not in own["accelerate.yaml"]
    assert "accelerate launch --config_file accelerate.yaml YOUR_SCRIPT.py" in own["accelerate.yaml"]
    on_cpu = written(ddp, CPU, of_a_script=True)["accelerate.yaml"]
    assert "ACCELERATE_USE_CPU=true accelerate launch --config_file accelerate.yaml --multi_gpu YOUR" in on_cpu
    fsdp1 = TrialConfig(strategy=Fsdp1Config(dp_shard=2))
    sharded = written(fsdp1, CPU, of_a_script=True)["accelerate.yaml"]
    assert "accelerate ignores FSDP" in sharded and "accelerate launch" not in sharded
    rejected = written(fsdp1, CPU)["accelerate.yaml"]
    assert "accelerate ignores FSDP" in rejected and "launch.sh accelerate" not in rejected


@pytest.mark.parametrize(
    "config",
    [
        TrialConfig(strategy=Fsdp2Config(dp_shard=8, blocks_per_unit=2), compile=True),
        TrialConfig(strategy=Fsdp1Config(dp_shard=2, dp_replicate=4, sharding_strategy="HYBRID_SHARD")),
        TrialConfig(strategy=DdpConfig(), activation_checkpointing="selective"),
    ],
)
def test_a_script_of_ones_own_is_not_sent_to_a_snippet_that_it_does_not_have(config) -> None:
    assert "see train_snippet.py" in (ours := written(config)["accelerate.yaml"]) or "from train_snippet.py" in ours
    own = written(config, of_a_script=True)
    assert "train_snippet.py" not in "".join(own.values()) and "see docs/how-to/own-code.md" in own["accelerate.yaml"]

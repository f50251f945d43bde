"""The training script exported for GPUs: what it must not do on the host."""

import ast

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.export import files
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

GPUS = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)


def script(strategy: DdpConfig | Fsdp2Config | ZeroConfig, cluster: Cluster = GPUS, compiled: bool = False) -> str:
    study = study_of("llama-tiny", "bf16-mixed", cluster, global_batch=cluster.world_size * 4)
    return files(study, contender_of(TrialConfig(strategy=strategy, compile=compiled)))["train_snippet.py"]


def function(source: str, name: str) -> str:
    tree = ast.parse(source)
    node = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.unparse(node)


def test_no_micro_batch_waits_for_the_device() -> None:
    """A copy from pageable memory ends with a synchronisation of the stream; pinned and non-blocking it does not."""
    assert function(script(DdpConfig()), "batches").endswith(".pin_memory().to(device, non_blocking=True)")
    assert "pin_memory" not in script(DdpConfig(), CPU)


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [(DdpConfig(), "torch.float32"), (ZeroConfig(stage=1), "torch.bfloat16"), (ZeroConfig(stage=2), "torch.bfloat16")],
)
def test_whole_models_are_built_on_the_gpu_of_the_rank_in_the_dtype_of_its_weights(
    strategy: DdpConfig | ZeroConfig, dtype: str
) -> None:
    source = script(strategy)
    build = function(source, "build_model")
    assert "with torch.device('cuda'):" in build and f"dtype={dtype}" in build
    main = function(source, "main")
    assert main.index("torch.cuda.set_device(device)") < main.index("build_model()")
    on_cpu = function(script(strategy, CPU), "build_model")
    assert "torch.device(" not in on_cpu and "dtype=torch.float32" in on_cpu


@pytest.mark.parametrize(("strategy", "device"), [(Fsdp2Config(dp_shard=8), "meta"), (ZeroConfig(stage=3), None)])
def test_models_that_are_built_in_parts_stay_so(strategy: Fsdp2Config | ZeroConfig, device: str | None) -> None:
    build = function(script(strategy), "build_model")
    assert "cuda" not in build and (device is None or f"with torch.device('{device}'):" in build)


@pytest.mark.parametrize(("gpus", "is_bound"), [(1, False), (2, True)])
def test_only_several_gpus_bind_their_process_group_to_a_device(gpus: int, is_bound: bool) -> None:
    main = function(script(DdpConfig(), GPUS.model_copy(update={"gpus_per_node": gpus})), "main")
    assert ("device_id=device" in main) == is_bound


def test_a_compiled_zero_script_leaves_deepspeed_s_hooks_uncompiled_as_the_trial_does() -> None:
    line = 'torch._dynamo.trace_rules.add("deepspeed")'
    assert line in script(ZeroConfig(stage=3), compiled=True) and line not in script(ZeroConfig(stage=3))
    assert line not in script(DdpConfig(), compiled=True)

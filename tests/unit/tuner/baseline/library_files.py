"""Files of Accelerate and of transformers as baselines, and what they are read as."""

from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline import ResolvedBaseline, resolve_with_notes

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

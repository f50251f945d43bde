"""Configurations whose short steps are compared with their whole steps: every backend, and pipelines."""

from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.tuner.verdict import short_steps

_MODEL = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
_STAGES = {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2, "reshard_after_forward": False, "grad_sync": "last"}


def _config(strategy: dict[str, Any], **fields: Any) -> TrialConfig:
    return TrialConfig.model_validate({"strategy": strategy, **fields})


CONFIGURATIONS: dict[str, TrialConfig] = {
    "ddp": _config({"kind": "ddp"}),
    "ddp, reduces every micro batch": _config({"kind": "ddp", "grad_sync": "every"}),
    "zero-1": _config({"kind": "zero", "stage": 1}),
    "zero-2": _config({"kind": "zero", "stage": 2}),
    "zero-3": _config({"kind": "zero", "stage": 3}),
    "zero-3, full checkpointing": _config({"kind": "zero", "stage": 3}, activation_checkpointing="full"),
    "fsdp1": _config({"kind": "fsdp1", "dp_shard": 2}),
    "fsdp1, full checkpointing": _config({"kind": "fsdp1", "dp_shard": 2}, activation_checkpointing="full"),
    "fsdp2": _config({"kind": "fsdp2", "dp_shard": 2}),
    "fsdp2, keeps parameters": _config({"kind": "fsdp2", "dp_shard": 2, "reshard_after_forward": False}),
    "fsdp2, reduces last": _config({"kind": "fsdp2", "dp_shard": 2, "grad_sync": "last"}),
    "fsdp2, micro batch 2": _config({"kind": "fsdp2", "dp_shard": 2}, micro_batch=2),
    "fsdp2, replicated": _config({"kind": "fsdp2", "dp_replicate": 2, "dp_shard": 1}),
    "fsdp2, tensor parallel": _config({"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}),
    "pipeline, 1f1b": _config(_STAGES),
    "pipeline, interleaved": _config(
        {**_STAGES, "pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2}
    ),
    "pipeline, zero bubble": _config({**_STAGES, "pipeline_schedule": "zbv_zero_bubble", "pipeline_virtual_stages": 2}),
}
"""Configurations by name."""


def task_of(config: TrialConfig, micro_batches: int) -> TrialTask:
    """Task of a configuration with this number of micro batches in a whole step on each rank, and its short steps.

    A configuration with micro batches of two samples, or with several ranks for each sample, has as many in proportion.
    """
    cluster = Cluster(nodes=1, gpus_per_node=2, device="cpu", gpu="cpu", memory_gib=8, host_memory_gib=16)
    workload = Workload(
        sequence_length=64, global_batch=micro_batches * 2, precision=PRECISIONS["fp32"], max_grad_norm=1.0
    )
    samples = 2 * cluster.world_size
    plan = short_steps.measure_plan(MeasurePlan(), samples, config, workload, cluster)
    return TrialTask(
        model=ModelSpec(name="bench", config=_MODEL), workload=workload, cluster=cluster, config=config, plan=plan
    )

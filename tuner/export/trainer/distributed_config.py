"""Export of meshes that split the model or divide its experts, as `DistributedConfig` of transformers 5.23.

`from_pretrained` shards the model as it loads it, and the Trainer leaves such a model's mesh alone.
"""

from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.tuner.export import experts, tensor
from shardtune.tuner.export.backends import common
from shardtune.tuner.export.backends.record import ConsumerParts
from shardtune.tuner.export.source import ExportSource

FILE = "distributed_config.json"


def is_needed(source: ExportSource) -> bool:
    """Whether the exported configuration needs a mesh that transformers makes only when it loads the model itself:
    FSDP2 with ranks that split blocks or divide experts, without pipeline stages or context parallelism."""
    strategy = source.config.strategy
    return (
        isinstance(strategy, Fsdp2Config)
        and (tensor.is_split(source) or experts.is_divided(source))
        and strategy.stages == 1
        and source.config.context_parallel == 1
        and not source.study.spec.model.is_own
    )


def values(source: ExportSource, strategy: Fsdp2Config) -> dict[str, Any]:
    """Fields of `DistributedConfig` for the exported mesh."""
    return {
        "tp_size": strategy.tensor_parallel,
        # Experts that ranks divide are split no further.
        "ep_size": strategy.expert_parallel,
        "fsdp_size": strategy.dp_shard,
        "dp_replicate_size": strategy.dp_replicate,
        "fsdp_cpu_offload": strategy.cpu_offload,
        "fsdp_mixed_precision": source.casts_weights,
    }


def trainer_arguments(source: ExportSource) -> dict[str, Any]:
    """Fields of `TrainingArguments` to use instead of its FSDP settings, where transformers shards the model as it
    loads it."""
    config = source.config
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": source.accumulation,
        # The Trainer rejects checkpoints of the optimizer for such a mesh.
        "save_only_model": True,
    }
    if source.casts_weights:
        # The mesh casts weights; Accelerate's autocast would cast again.
        arguments["bf16"] = False
    if config.checkpoints_whole_blocks:
        # The Trainer checkpoints such a mesh by itself, without FSDP's own way, and so can offload.
        offload = {"offload": True} if config.activation_offload else {}
        arguments |= {
            "activation_checkpointing": True,
            "activation_checkpointing_kwargs": {"use_reentrant": False} | offload,
        }
    return arguments


def parts(source: ExportSource, strategy: Fsdp2Config) -> ConsumerParts:
    """Strategy as transformers runs it on the mesh of a model that it loads, and differences from the measured trial
    that no knob expresses."""
    lines = [
        "resume: transformers saves the model of such a mesh, and not its optimizer; a training cannot continue from it",
        "units: transformers also shards the embedding, the last norm and the head as units of their own",
    ]
    if tensor.is_split(source):
        lines.append(
            "tensor_parallel: positions between blocks were split; transformers keeps all of them on each rank"
        )
    plain = strategy.as_accelerate_runs_it(source.accumulation)
    return ConsumerParts(
        # Accelerate's `no_sync` knows FSDP2 by its own plugin only (1.15), which such a mesh does without.
        strategy=plain.model_copy(update={"reshard_after_forward": True, "grad_sync": "every"}),
        notes=(*lines, *common.ignored_on_cpu(source)),
    )

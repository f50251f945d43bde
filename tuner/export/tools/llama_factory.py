"""Export for LLaMA-Factory: `llama_factory.yaml`, which `llamafactory-cli train` reads, and DeepSpeed's JSON beside it.

LLaMA-Factory reads a DeepSpeed section under torchrun alone, so the header starts it so.
"""

from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.export import adapters, sample_lengths
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.environment import node_variables
from shardtune.tuner.export.precision import float8, quantization
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import tool_arguments as tools
from shardtune.tuner.export.tools.tool_arguments import ToolArguments
from shardtune.tuner.export.tools.tool_file import tool_files
from shardtune.tuner.export.trainer.repository import SET_ME, repository
from shardtune.tuner.export.trial_rendering import Rendered

RELEASE = "LLaMA-Factory 0.9"
CONFIG = "llama_factory.yaml"
_TOOL = "LLaMA-Factory"
_PADDED_TO = 8
"""Multiple to which LLaMA-Factory pads the number of tokens of each micro batch's samples (0.9.5)."""
_ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}
"""LLaMA-Factory's names of attention implementations."""


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported files for LLaMA-Factory.

    Raises:
        ValueError: the Trainer lacks the backend, the configuration uses more than data parallelism, or LLaMA-Factory
            cannot express the adapter.
    """
    arguments = tools.tool_arguments(source, _TOOL, backends)
    config, mesh_notes = tools.one_shard_group(source, arguments.config, _TOOL)
    lossy = (*arguments.lossy, *mesh_notes, *_notes(source))
    values = {
        **_model(source),
        "stage": "sft",
        "do_train": True,
        **_adapter(source),
        **_data(source),
        **arguments.values,
        **_precision(source, arguments),
        # It checkpoints every model unless it is told not to.
        "disable_gradient_checkpointing": not arguments.checkpoints,
        "use_reentrant_gc": False,
        **_sharding(arguments, config),
    }
    # By itself its launcher sets the allocator to expandable segments.
    command = f"FORCE_TORCHRUN=1 OPTIM_TORCH=0 {node_variables(source)}llamafactory-cli train {CONFIG}"
    files = tool_files(source, CONFIG, RELEASE, command, lossy, values, arguments.deepspeed)
    return Rendered(files, RELEASE, lossy, config)


def _model(source: ExportSource) -> dict[str, Any]:
    weights = repository(source)
    revision = {} if weights.revision is None else {"model_revision": weights.revision}
    attention = _ATTENTION.get(source.attention, "auto")
    return {"model_name_or_path": weights.id, **revision, "flash_attn": attention, "trust_remote_code": False}


def _adapter(source: ExportSource) -> dict[str, Any]:
    if blocks := tools.trained_blocks(source):
        return {"finetuning_type": "freeze", "freeze_trainable_layers": len(blocks), "freeze_trainable_modules": "all"}
    if (adapter := tools.lora_of(source)) is None:
        return {"finetuning_type": "full"}
    lora, targets = adapter
    return {
        "finetuning_type": "lora",
        "lora_rank": lora.rank,
        "lora_alpha": tools.alpha_of(lora, _TOOL),
        "lora_dropout": 0.0,
        "lora_target": "all" if isinstance(targets, str) else ",".join(targets),
        "use_rslora": lora.rslora,
        **adapters.dora_values(lora),
        **quantization.llama_factory_values(source),
    }


def _data(source: ExportSource) -> dict[str, Any]:
    return {
        "dataset": SET_ME,
        "template": SET_ME,
        "output_dir": "./out",
        "cutoff_len": source.workload.sequence_length,
        # `packing` alone lets the samples of a row see each other.
        "packing": sample_lengths.is_packed(source),
        "neat_packing": sample_lengths.is_packed(source),
        **sample_lengths.trainer_values(source),
    }


def _precision(source: ExportSource, arguments: ToolArguments) -> dict[str, Any]:
    # It refuses `pure_bf16` beside ZeRO-3, where DeepSpeed keeps the states.
    if source.workload.precision.has_low_states and not tools.is_zero(source):
        return {"bf16": False, "fp16": False, "pure_bf16": True}
    return {"bf16": arguments.values["bf16"], "fp16": False}


def _sharding(arguments: ToolArguments, config: TrialConfig) -> dict[str, Any]:
    if arguments.deepspeed is not None:
        return {"deepspeed": tools.DEEPSPEED}
    if arguments.fsdp is None:
        return {}
    # transformers 5.6 takes the words of FSDP1's time; without `auto_wrap` the whole model would be one unit.
    offload = " offload" if arguments.fsdp["cpu_offload"] else ""
    return {"fsdp": f"full_shard auto_wrap{offload}", "fsdp_config": arguments.fsdp}


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = [f"data: set dataset and template ({SET_ME}); the template decides which tokens are labels"]
    lines += float8.tool_notes(source, "LLaMA-Factory", "fp8")
    data, precision = source.workload.data, source.workload.precision
    if data is not None:
        lines += [
            f"data: {data.describe()} measured; your own data set decides in LLaMA-Factory",
            *sample_lengths.grouping_notes(data),
        ]
    else:
        length = source.workload.sequence_length
        lines.append(
            f"data: every sample had {length} tokens in the trial; LLaMA-Factory pads to the longest of a batch"
        )
    if data is not None and data.is_packed:
        lines.append(
            "data.layout: LLaMA-Factory packs with a greedy knapsack, and drops samples of cutoff_len tokens: a row keeps room "
            "for one token of padding"
        )
    elif data is not None and data.pad_to_multiple_of != _PADDED_TO:
        lines.append(
            f"data.pad_to_multiple_of: {data.pad_to_multiple_of} was measured; LLaMA-Factory always pads to a multiple of "
            f"{_PADDED_TO}"
        )
    if source.attention not in _ATTENTION:
        lines.append(f"attention: {source.attention} was measured; LLaMA-Factory chooses the implementation here")
    if source.workload.adapter is not None and precision.has_float32_weights:
        lines.append(
            "precision: frozen weights in float32 were measured; LLaMA-Factory keeps them as the repository has them"
        )
    if (adapter := tools.lora_of(source)) is not None:
        lines += adapters.unlisted_layers(source, adapter[0])
    return tuple(lines)

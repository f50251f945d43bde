"""Export for ms-swift: `ms_swift.yaml`, whose keys are the arguments of `swift sft`, and the JSON files that it names.

ms-swift hands unknown arguments back without a word, so a test compares them with ms-swift's own.
"""

from typing import Any

from shardtune.api_schemas.training.padding import FLASH
from shardtune.tuner.export import adapters, sample_lengths
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.environment import node_variables
from shardtune.tuner.export.precision import float8, quantization
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import tool_arguments as tools
from shardtune.tuner.export.tools.tool_arguments import ToolArguments
from shardtune.tuner.export.tools.tool_file import as_json, tool_files
from shardtune.tuner.export.trainer.repository import SET_ME, repository
from shardtune.tuner.export.trial_rendering import Rendered

RELEASE = "ms-swift 4.6"
CONFIG, FSDP = "ms_swift.yaml", "fsdp_config.json"
_TOOL = "ms-swift"


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported files for ms-swift.

    Raises:
        ValueError: transformers' Trainer does not support the backend, or the configuration uses more than data
            parallelism.
    """
    arguments = tools.tool_arguments(source, _TOOL, backends)
    config, mesh_notes = tools.one_shard_group(source, arguments.config, _TOOL)
    lossy = (*arguments.lossy, *mesh_notes, *_notes(source))
    values = {
        **_model(source),
        **_adapter(source),
        **_data(source),
        **arguments.values,
        "fp16": False,
        "gradient_checkpointing": arguments.checkpoints,
        **({"gradient_checkpointing_kwargs": dict(tools.NON_REENTRANT)} if arguments.checkpoints else {}),
        # It would leave out logits of the prompt, which trials compute.
        "use_logits_to_keep": False,
        **_sharding(arguments),
    }
    command = f"{node_variables(source)}swift sft {CONFIG}"
    files = tool_files(source, CONFIG, RELEASE, command, lossy, values, arguments.deepspeed)
    if arguments.fsdp is not None:
        files[FSDP] = as_json(_fsdp_document(arguments.fsdp))
    return Rendered(files, RELEASE, lossy, config)


def _model(source: ExportSource) -> dict[str, Any]:
    weights, precision = repository(source), source.workload.precision
    revision = {} if weights.revision is None else {"model_revision": weights.revision}
    # PEFT keeps an adapter's matrices in float32, so that the dtype is that of the frozen weights.
    dtype = precision.master_dtype if tools.lora_of(source) is None else precision.weights_dtype
    # By itself it asks ModelScope for the repository.
    attention = FLASH if sample_lengths.is_packed(source) else source.attention
    return {"model": weights.id, **revision, "use_hf": True, "torch_dtype": dtype, "attn_impl": attention}


def _adapter(source: ExportSource) -> dict[str, Any]:
    if blocks := tools.trained_blocks(source):
        # Prefixes of names: without the dot, block 3 would be 30 to 39 as well.
        prefixes = [f"{block}." for block in blocks]
        return {"tuner_type": "full", "freeze_parameters_ratio": 1.0, "trainable_parameters": prefixes}
    if (adapter := tools.lora_of(source)) is None:
        return {"tuner_type": "full"}
    lora, targets = adapter
    return {
        "tuner_type": "lora",
        "lora_rank": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": [targets] if isinstance(targets, str) else targets,
        "use_rslora": lora.rslora,
        **adapters.dora_values(lora),
        **quantization.ms_swift_values(source),
    }


def _data(source: ExportSource) -> dict[str, Any]:
    data = source.workload.data
    values: dict[str, Any] = {
        "dataset": SET_ME,
        "output_dir": "./out",
        "max_length": source.workload.sequence_length,
        "packing": sample_lengths.is_packed(source),
        "padding_free": sample_lengths.is_packed(source),
        "group_by_length": data is not None and data.layout == "grouped",
    }
    return values if data is None else values | {"average_tokens_across_devices": True}


def _sharding(arguments: ToolArguments) -> dict[str, Any]:
    if arguments.deepspeed is not None:
        return {"deepspeed": tools.DEEPSPEED}
    return {} if arguments.fsdp is None else {"fsdp": FSDP}


def _fsdp_document(section: dict[str, Any]) -> dict[str, Any]:
    """Content of the file to which ms-swift's argument `fsdp` points; it has the form of ms-swift's own `fsdp2.json`."""
    offload = " offload" if section["cpu_offload"] else ""
    values = {name: value for name, value in section.items() if name not in ("version", "cpu_offload")}
    return {"fsdp": f"full_shard auto_wrap{offload}", "fsdp_config": {"fsdp_version": 2, **values}}


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = [f"data: set dataset ({SET_ME}); ms-swift's template decides which tokens are labels"]
    lines.append(
        "metrics: ms-swift also computes the token accuracy of each micro batch, on the host from whole logits; no trial did"
    )
    lines += float8.tool_notes(source, "ms-swift", None)
    data, precision = source.workload.data, source.workload.precision
    if data is None:
        length = source.workload.sequence_length
        lines.append(f"data: every sample had {length} tokens in the trial; ms-swift pads to the longest of a batch")
    else:
        lines += [
            f"data: {data.describe()} measured; your own data set decides in ms-swift",
            *sample_lengths.grouping_notes(data),
        ]
    if sample_lengths.is_packed(source) and source.attention != FLASH:
        lines.append(
            f"attention: {source.attention} was measured; ms-swift packs with flash attention alone, which needs GPUs"
        )
    if data is not None and data.pad_to_multiple_of > 1:
        lines.append(
            f"data.pad_to_multiple_of: {data.pad_to_multiple_of} was measured; ms-swift has 1, as it has no argument for it"
        )
    if tools.trained_blocks(source) and source.casts_weights:
        lines.append(
            f"precision: frozen weights in {precision.weights_dtype} were measured; ms-swift loads all in "
            f"{precision.master_dtype}"
        )
    if (adapter := tools.lora_of(source)) is not None:
        lines += adapters.unlisted_layers(source, adapter[0])
    return tuple(lines)

"""Values of `"auto"` in a DeepSpeed JSON, filled in as the tool that calls DeepSpeed does, because DeepSpeed itself
does not know `"auto"`.

As in transformers 5.17 (`integrations/deepspeed.py`, `HfTrainerDeepSpeedConfig`) and Accelerate 1.15
(`Accelerator._prepare_deepspeed`): buckets follow the model's hidden size; the Trainer's batch is 8 by default.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.section import Section

Tool = Literal["trainer", "accelerate", "deepspeed"]
TRAINERS_BATCH = 8
_BY_HIDDEN: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
_AT_STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "hidden_sizes")
"""Keys under which a model configuration gives its hidden size; `hidden_sizes` is a list, of which the largest size
counts."""


def tool_of(named_tool: JsonValue, values: Mapping[str, JsonValue]) -> Tool:
    """Name of the tool for which a bare DeepSpeed JSON was written: the one the user names, else the Trainer if some
    value is `auto`, else DeepSpeed itself.
    """
    if named_tool is None:
        return "trainer" if any(map(_has_auto, values.values())) else "deepspeed"
    for tool in get_args(Tool):
        if named_tool == tool:
            return tool  # type: ignore[no-any-return]
    raise ValueError(f"baseline.tool ({named_tool!r}) must be one of {', '.join(get_args(Tool))}")


def fill_in(
    values: Mapping[str, JsonValue], tool: Tool, model: ModelSpec | None, notes: list[str]
) -> dict[str, JsonValue]:
    """Fill in the bucket sizes that are `auto` in a DeepSpeed JSON as the tool does that passes the file to DeepSpeed,
    and add a note on how the values were read.

    Raises:
        ValueError: a bucket is `auto`, and the model's file does not give its hidden size.
    """
    filled = dict(values)
    zero = filled.get("zero_optimization")
    if not isinstance(zero, dict):
        return filled
    # Stage-3 sizes have no effect below stage 3, so their `auto` needs no hidden size there.
    auto_keys = [
        key for key in _BY_HIDDEN if zero.get(key) == "auto" and (zero.get("stage") == 3 or key not in _AT_STAGE_3)
    ]
    if not auto_keys:
        return filled
    if tool == "deepspeed":
        notes.append(
            f'"auto" in {", ".join(auto_keys)} is read as DeepSpeed\'s own default, since baseline.tool is deepspeed'
        )
        return filled
    hidden = _hidden_size(model)
    if hidden is None:
        raise ValueError(
            f'baseline.zero_optimization.{auto_keys[0]} ("auto") follows the hidden size, which the model\'s config does not say; give a '
            "number, or the hidden_size"
        )
    sizes = {key: _BY_HIDDEN[key](hidden) for key in auto_keys}
    filled["zero_optimization"] = {**zero, **sizes}
    described_sizes = ", ".join(f"{key} {size:,}" for key, size in sizes.items())
    name = "the Hugging Face Trainer" if tool == "trainer" else "Accelerate"
    notes.append(
        f'"auto" is read as {name} reads it, by the hidden size of {hidden}: {described_sizes} (baseline.tool names another)'
    )
    return filled


def trainers_batch(top: Section, workload: Workload, cluster: Cluster, notes: list[str]) -> int:
    """Default micro batch of transformers' Trainer: 8, or the largest number below 8 that divides the rank's
    samples."""
    samples_per_rank = workload.global_batch // cluster.world_size or 1
    batch = max(size for size in range(1, TRAINERS_BATCH + 1) if samples_per_rank % size == 0)
    shortfall = (
        ""
        if batch == TRAINERS_BATCH
        else f", which {workload.global_batch} samples over {cluster.world_size} ranks do not allow"
    )
    notes.append(
        f"{top.name('train_micro_batch_size_per_gpu')} is auto, so the Trainer's default of {TRAINERS_BATCH}{shortfall}; measured with {batch}"
    )
    return batch


def _has_auto(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(_has_auto(inner) for inner in value.values())
    return value == "auto"


def _hidden_size(model: ModelSpec | None) -> int | None:
    if model is None:
        return None
    text = model.config.get("text_config")
    for config in (model.config, text if isinstance(text, dict) else {}):
        for key in _HIDDEN:
            value = config.get(key)
            sizes = value if isinstance(value, list) else [value]
            positive = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size > 0]
            if positive:
                return max(positive)
    return None

"""Words of ms-swift's arguments, as a YAML or JSON file of them (4.6)."""

import math

from pydantic import JsonValue

from shardtune.api_schemas.training.adapters import ALL_LINEAR
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools import quantization
from shardtune.tuner.baseline.tools.tool import Fields, StatedAdapter, Tool, TrainerFields

_SAMPLES = 16
"""Default number of samples per step in ms-swift: if its file does not say how many micro batches a step accumulates,
it accumulates until the step has this many samples."""
_BUCKETS: dict[str, JsonValue] = {
    "overlap_comm": False,
    "contiguous_gradients": True,
    "allgather_bucket_size": 2e8,
    "reduce_bucket_size": 2e8,
}
_STAGE_3: dict[str, JsonValue] = {
    "overlap_comm": False,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
}
_ON_HOST: JsonValue = {"device": "cpu", "pin_memory": True}
_PRESETS: dict[str, dict[str, JsonValue]] = {
    "zero0": {"stage": 0, **_BUCKETS},
    "zero1": {"stage": 1, **_BUCKETS},
    "zero2": {"stage": 2, **_BUCKETS},
    "zero2_offload": {"stage": 2, **_BUCKETS, "offload_optimizer": _ON_HOST},
    "zero3": {"stage": 3, **_STAGE_3},
    "zero3_offload": {"stage": 3, **_STAGE_3, "offload_optimizer": _ON_HOST, "offload_param": _ON_HOST},
}
"""Contents of the DeepSpeed configurations that ms-swift ships, by their name."""
_FSDP2: dict[str, JsonValue] = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True, "activation_checkpointing": True},
}
"""Content of ms-swift's own `fsdp2.json`."""
_CHOICES = frozenset(["default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"])
"""Parts of ms-swift's `loss_scale` that only choose which tokens count; all others give some tokens a larger weight."""


_PATTERNS: tuple[str, ...] = (
    "trainable_parameters",
    "trainable_parameters_regex",
    "freeze_parameters",
    "freeze_parameters_ratio",
)
_PATTERNS += ("freeze_parameters_regex",)


def _translate(fields: TrainerFields, ranks: int) -> None:
    values = fields.values
    batch = values.setdefault("per_device_train_batch_size", 1)
    if "gradient_accumulation_steps" not in values and isinstance(batch, int) and batch > 0:
        values["gradient_accumulation_steps"] = max(1, math.ceil(_SAMPLES / batch / ranks))
    values.setdefault("gradient_checkpointing", True)
    _translate_dtype(fields)
    if isinstance(preset := values.get("deepspeed"), str):
        if preset not in _PRESETS:
            raise ValueError(
                f"baseline.deepspeed ({preset!r:.60}) must be a JSON file, its content, or one of {', '.join(_PRESETS)}"
            )
        sizes = (
            "gradient_accumulation_steps",
            "gradient_clipping",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
        )
        values["deepspeed"] = {"zero_optimization": dict(_PRESETS[preset]), **dict.fromkeys(sizes, "auto")}
    if values.get("optimizer") is not None:
        # A plugin takes priority over `optim`.
        values["optim"], fields.names["optim"] = values.pop("optimizer"), "optimizer"
    if (task := values.pop("task_type", None)) not in (None, "causal_lm"):
        raise ValueError(f"baseline.task_type ({task!r:.60}) is trained by no trial; use causal_lm, or drop it")
    # Others are losses of embeddings and rerankers, or of a plugin.
    if (loss := values.pop("loss_type", None)) not in (None, "cross_entropy"):
        raise ValueError(
            f"baseline.loss_type ({loss!r:.60}) changes what is trained, which no trial does; use cross_entropy, or drop it"
        )
    _check_loss_scale(fields)
    _translate_fsdp(values)


def _check_loss_scale(fields: TrainerFields) -> None:
    """Reject a file that weighs tokens by their part of a conversation, and note a choice of the tokens that count, which
    becomes labels of -100 in ms-swift and changes no step of a trial."""
    scale, switch = fields.values.pop("loss_scale", None), "is_binary_loss_scale"
    is_binary = Section({switch: fields.values.pop(switch, None)}, "baseline").flag(switch)
    if scale is None:
        return
    weighs = not set(str(scale).split("+")) <= _CHOICES
    if weighs and is_binary is not True:
        raise ValueError(
            f"baseline.loss_scale ({scale!r:.60}) weighs tokens, which no trial does; use {', '.join(sorted(_CHOICES))}, or "
            "drop it"
        )
    fields.notes.append(f"baseline.loss_scale ({scale!r:.60}) is not applied: trials count every token of a sample")


def _translate_dtype(fields: TrainerFields) -> None:
    values = fields.values
    dtype = values.get("torch_dtype")
    if dtype in (None, "bfloat16"):
        return
    if dtype != "float32":
        raise ValueError(
            f"baseline.torch_dtype ({dtype!r:.60}) is no dtype of a trial's weights; use bfloat16 or float32"
        )
    if values.get("fp16") is None:
        raise ValueError(
            "baseline.torch_dtype ('float32') means fp16 in ms-swift, which no trial uses; add fp16: false"
        )
    if values.get("bf16") is None:
        values["bf16"], fields.names["bf16"] = False, "bf16 (by torch_dtype float32)"


def _translate_fsdp(values: Fields) -> None:
    document = _FSDP2 if values.get("fsdp") == "fsdp2" else values.get("fsdp")
    if not document:
        return
    if not isinstance(document, dict):
        raise ValueError(f"baseline.fsdp ({document!r:.60}) must be a JSON file, its content, or fsdp2")
    section = document.get("fsdp_config")
    section = dict(section) if isinstance(section, dict) else {}
    if not {"version", "fsdp_version"} & section.keys():
        section["version"] = 2
    values["fsdp"], values["fsdp_config"] = document.get("fsdp", "full_shard auto_wrap"), section


def _adapter(values: Fields) -> StatedAdapter:
    kind = values.get("tuner_type", "lora")
    if kind == "full":
        pattern = next((name for name in _PATTERNS if values.get(name)), None)
        return StatedAdapter(pattern or "tuner_type", None, is_known=pattern is None)
    if kind != "lora":
        raise ValueError(f"baseline.tuner_type ({kind!r:.60}) is trained by no trial; use lora or full")
    targets = values.get("target_modules", [ALL_LINEAR])
    names: list[JsonValue] = targets if isinstance(targets, list) else [targets]
    named: JsonValue = ALL_LINEAR if names == [ALL_LINEAR] else names
    return StatedAdapter(
        "tuner_type",
        {
            "rank": values.get("lora_rank", 8),
            "alpha": values.get("lora_alpha", 32),
            "targets": named,
            "rslora": bool(Section(values, "baseline").flag("use_rslora")),
            "dora": bool(Section(values, "baseline").flag("use_dora")),
            **quantization.of_ms_swift(values),
        },
        is_known=not values.get("target_regex") and not values.get("target_parameters"),
    )


TOOL = Tool(
    title="ms-swift",
    marks=frozenset(["tuner_type", "tuner_backend", "freeze_parameters_ratio", "split_dataset_ratio"]),
    keys_file="ms_swift",
    length="max_length",
    default_length=None,
    loads_low=True,
    dtype_key="torch_dtype",
    packing=("packing", "padding_free"),
    packs_apart="packing",
    quantised=("quant_method", "quant_bits"),
    four_bit=("quant_method", "quant_bits"),
    parallel=("sequence_parallel_size", "deepspeed_autotp_size"),
    renamed={},
    translate=_translate,
    adapter=_adapter,
)

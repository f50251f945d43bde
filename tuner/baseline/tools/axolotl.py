"""Words of axolotl's YAML (0.21)."""

from shardtune.api_schemas.training.adapters import ALL_LINEAR
from shardtune.api_schemas.training.quantization import QLORA
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools import float8, keys, quantization
from shardtune.tuner.baseline.tools.tool import Fields, StatedAdapter, Tool, TrainerFields

_RENAMED = {
    "micro_batch_size": "per_device_train_batch_size",
    "optimizer": "optim",
    "float16": "fp16",
    "lr_scheduler": "lr_scheduler_type",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
}
_ATTENTION_GROUP = "attention"
"""Name of axolotl for all kernels of attention in `selective_checkpointing.save`, whose default it is."""
_SAVED = {_ATTENTION_GROUP, "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm"}
"""Operators in `selective_checkpointing.save` that stand for all results that trials keep by default."""
_OWN_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
"""Switches for axolotl's own LoRA kernels."""
_PARTS = 8
"""Default of `chunked_cross_entropy_num_chunks`."""
_ATTENTION = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""Older switches, in axolotl's order of precedence, and what each means as `attn_implementation`."""
PLUGIN_PREFIXES: tuple[str, ...] = (
    "liger_",
    "cut_cross_entropy",
    "kd_",
    "spectrum_",
    "lm_eval_",
    "swanlab_",
    "grokfast_",
    "nemo_gym_",
)
PLUGIN_PREFIXES += ("expert_parallel_", "autotune_", "dsv4_", "gemma4_", "moe_", "nvfp4_")
"""Beginnings of the keys of axolotl's own plugins, which its schema has only where `plugins` names them."""
PLUGIN_KEYS = frozenset(["context_parallel", "coreweave", "dense_mixer", "diffusion", "diffusion_decision", "hatchery"])
PLUGIN_KEYS |= {"expert_backend", "nonexpert_quantization", "use_scattermoe", "use_sonicmoe", "use_dsv4_kernels"}
PLUGIN_KEYS |= {"use_glm_dsa_kernels", "llmcompressor", "mora", "use_swanlab"}
"""Further keys of axolotl's own plugins (0.21)."""


def _translate(fields: TrainerFields, _ranks: int) -> None:
    values = fields.values
    fields.values.setdefault("per_device_train_batch_size", 1)
    fields.names.setdefault("per_device_train_batch_size", "micro_batch_size")
    if isinstance(checkpointing := values.get("gradient_checkpointing"), str) and checkpointing.startswith("offload"):
        values["gradient_checkpointing"] = True
        if checkpointing == "offload":
            fields.after["activation_offload"] = True
        else:
            fields.notes.append(
                f"baseline.gradient_checkpointing ({checkpointing!r:.60}): measured with inputs on the GPU"
            )
    _translate_selective(fields)
    is_bfloat16 = Section(values, "baseline").flag("bfloat16")
    values.pop("bfloat16", None)
    if values.get("bf16") == "full" or (is_bfloat16 and "bf16" not in values):
        values["bf16"] = True
    _translate_mesh(fields)
    _translate_fsdp(fields)
    _translate_attention(fields)
    _note_kernels(fields)
    _note_chunked_copies(fields)
    tiles = [values.pop(name, None) for name in ("tiled_mlp", "tiled_mlp_num_shards", "tiled_mlp_use_original_mlp")]
    if tiles[0]:
        fields.notes.append(
            "baseline.tiled_mlp is not applied: measured with whole MLPs, which keep more activations; trials have slices of "
            "their own (mlp_slices)"
        )


def _translate_selective(fields: TrainerFields) -> None:
    """Read which results selective checkpointing keeps. By default axolotl keeps those of attention alone; a list names
    parts of operators' names, of which trials have no others than all matrix products."""
    stated = fields.values.pop("selective_checkpointing", None)
    if not stated:
        return
    saved = stated.get("save") if isinstance(stated, dict) else None
    names = {_ATTENTION_GROUP} if saved is None else {*map(str, saved)} if isinstance(saved, list) else {str(saved)}
    keeps = "attention" if names <= {_ATTENTION_GROUP} else "products"
    fields.after |= {"activation_checkpointing": "selective", "selective_keeps": keeps}
    if names not in ({_ATTENTION_GROUP}, _SAVED):
        fields.notes.append(
            f"baseline.selective_checkpointing (save {sorted(names)!r:.100}) is measured with selective_keeps ({keeps!r})"
        )


def _note_chunked_copies(fields: TrainerFields) -> None:
    """Add a note that axolotl's chunked cross entropy is no loss in chunks: all logits are computed, and only their
    float32 copies in parts (0.21)."""
    is_on, parts = (fields.values.pop(f"chunked_cross_entropy{end}", None) for end in ("", "_num_chunks"))
    if keys.is_set(is_on):
        fields.notes.append(
            f"baseline.chunked_cross_entropy is not applied: axolotl computes all logits, with float32 copies of one of "
            f"{parts or _PARTS!r:.20} parts; measured with float32 copies of all logits, which take more memory"
        )


def _note_kernels(fields: TrainerFields) -> None:
    """Add a note that axolotl would train LoRA with kernels of its own, as it does unless the file names one of them or
    the weights or the model's code rule them out (0.21)."""
    values = fields.values
    is_stated = any(values.get(name) is not None for name in _OWN_KERNELS)
    is_ruled_out = bool(values.get("load_in_8bit") or values.get("trust_remote_code"))
    if values.get("adapter") in ("lora", QLORA) and not (is_stated or is_ruled_out):
        fields.notes.append(
            f"baseline.{_OWN_KERNELS[0]} is absent, which means axolotl's own LoRA kernels; measured without them"
        )


def _translate_mesh(fields: TrainerFields) -> None:
    for key, name in (("dp_replicate_size", "dp_replicate"), ("dp_shard_size", "dp_shard")):
        if (size := fields.values.pop(key, None)) is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"baseline.{key} ({size!r:.60}) must be a number of ranks; give one, or drop it")
        if size > 1 and fields.values.get("fsdp_config") is None:
            if name == "dp_shard":
                raise ValueError(
                    f"baseline.{key} ({size}) needs fsdp_config in axolotl; add fsdp_config, or drop {key}"
                )
            fields.notes.append(
                f"baseline.{key} ({size}) has no effect without fsdp_config: all ranks hold all weights"
            )
        fields.after[name] = size


def _translate_fsdp(fields: TrainerFields) -> None:
    values = fields.values
    version = values.pop("fsdp_version", None)
    section = values.get("fsdp_config")
    if section is None:
        return
    if not isinstance(section, dict):
        raise ValueError(f"baseline.fsdp_config ({section!r:.60}) must be an object; give its content here")
    section = dict(section)
    version = section.get("fsdp_version", section.get("version", version))
    if version not in (None, 2, "2"):
        raise ValueError(f"baseline.fsdp_version ({version!r:.60}) is gone from axolotl 0.21; set it to 2")
    if (pinned := Section(section, "baseline.fsdp_config").flag("cpu_offload_pin_memory")) is not None:
        fields.after["pin_memory"] = pinned
    section.pop("cpu_offload_pin_memory", None)
    values["fsdp_config"], values["fsdp"] = section | {"version": 2}, True
    fields.names["fsdp"] = "fsdp_config"


def _translate_attention(fields: TrainerFields) -> None:
    stated = [switch for switch in _ATTENTION if keys.is_set(fields.values.pop(switch, None))]
    if stated and fields.values.get("attn_implementation") is None:
        fields.values["attn_implementation"] = _ATTENTION[stated[0]]
        fields.names["attn_implementation"] = stated[0]


def _adapter(values: Fields) -> StatedAdapter:
    top = Section(values, "baseline")
    kind = values.get("adapter")
    if kind is None:
        patterns = values.get("unfrozen_parameters")
        return StatedAdapter("unfrozen_parameters" if patterns else "adapter", None, is_known=not patterns)
    if kind not in ("lora", QLORA):
        raise ValueError(f"baseline.adapter ({kind!r:.60}) is trained by no trial; use lora or qlora, or leave it out")
    packed = quantization.of_axolotl(values) if kind == QLORA else {}
    targets = ALL_LINEAR if top.flag("lora_target_linear") else values.get("lora_target_modules")
    return StatedAdapter(
        "adapter",
        {
            "rank": values.get("lora_r"),
            "alpha": values.get("lora_alpha"),
            "targets": targets,
            "rslora": bool(top.flag("peft_use_rslora")),
            "dora": bool(top.flag("peft_use_dora")),
            **packed,
        },
    )


TOOL = Tool(
    title="axolotl",
    marks=frozenset(["base_model", "micro_batch_size", "lora_target_linear"]),
    keys_file="axolotl",
    length="sequence_len",
    default_length=512,
    loads_low=True,
    dtype_key=None,
    packing=("sample_packing", "batch_flattening"),
    packs_apart="sample_packing",
    quantised=("load_in_4bit", "load_in_8bit", "gptq", "quantization", "qat"),
    four_bit=("load_in_4bit",),
    parallel=("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "expert_parallel_size"),
    renamed=_RENAMED,
    translate=_translate,
    adapter=_adapter,
    float8=float8.of_axolotl,
)

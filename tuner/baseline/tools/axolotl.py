"""Words of axolotl's YAML (0.21)."""

from shardtune.api_schemas.training.adapters import ALL_LINEAR
from shardtune.tuner.baseline.tools.tool import Fields, StatedAdapter, Tool, TrainerFields

_RENAMED = {
    "micro_batch_size": "per_device_train_batch_size",
    "optimizer": "optim",
    "lr_scheduler": "lr_scheduler_type",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
}


def _translate(fields: TrainerFields, _ranks: int) -> None:
    values = fields.values
    fields.values.setdefault("per_device_train_batch_size", 1)
    fields.names.setdefault("per_device_train_batch_size", "micro_batch_size")
    if isinstance(checkpointing := values.get("gradient_checkpointing"), str) and checkpointing.startswith("offload"):
        values["gradient_checkpointing"] = True
        fields.notes.append(
            "baseline.gradient_checkpointing (offload): measured without moving activations to the host"
        )
    if values.pop("selective_checkpointing", None):
        fields.after["activation_checkpointing"] = "selective"
        fields.notes.append("baseline.selective_checkpointing is measured with the results that trials keep")
    for key, name in (("dp_replicate_size", "dp_replicate"), ("dp_shard_size", "dp_shard")):
        if (size := values.pop(key, None)) is None:
            continue
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"baseline.{key} ({size!r:.60}) must be a number of ranks; give one, or drop it")
        fields.after[name] = size
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
    if (pinned := section.pop("cpu_offload_pin_memory", None)) is not None:
        fields.after["pin_memory"] = bool(pinned)
    values["fsdp_config"], values["fsdp"] = section | {"version": 2}, True
    fields.names["fsdp"] = "fsdp_config"


def _adapter(values: Fields) -> StatedAdapter:
    kind = values.get("adapter")
    if kind is None:
        return StatedAdapter("unfrozen_parameters", None, is_known=not values.get("unfrozen_parameters"))
    if kind != "lora":
        raise ValueError(f"baseline.adapter ({kind!r:.60}) is trained by no trial; use lora, or leave it out")
    targets = ALL_LINEAR if values.get("lora_target_linear") else values.get("lora_target_modules")
    return StatedAdapter(
        "adapter",
        {
            "rank": values.get("lora_r"),
            "alpha": values.get("lora_alpha"),
            "targets": targets,
            "rslora": bool(values.get("peft_use_rslora")),
        },
    )


TOOL = Tool(
    title="axolotl",
    marks=frozenset(["base_model", "micro_batch_size", "sequence_len", "sample_packing", "lora_target_linear"]),
    keys_file="axolotl",
    length="sequence_len",
    packing=("sample_packing", "batch_flattening"),
    quantised=("load_in_4bit", "load_in_8bit", "gptq", "quantization", "qat"),
    parallel=("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "expert_parallel_size"),
    renamed=_RENAMED,
    translate=_translate,
    adapter=_adapter,
)

"""Reading of a fine-tuning tool's file: its keys are checked, what it trains is compared with the workload, and the rest
is read as TrainingArguments."""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files
from typing import Any

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.adapters import LastLayers, Lora
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import training_arguments
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.baseline.tools.tool import Fields, StatedAdapter, Tool, TrainerFields

_TOOLS = (axolotl.TOOL, llama_factory.TOOL, ms_swift.TOOL)
_TRUE = (True, "true", "True")
_DROPOUT, _DORA = "lora_dropout", ("peft_use_dora", "use_dora")
_SILENT_PREFIXES: tuple[str, ...] = (
    *("data", "test_data", "val_", "eval", "hub", "wandb", "mlflow", "comet", "swanlab", "save", "log", "report_to"),
    *("lora_", "peft_", "freeze_", "chat_template", "special_tokens", "generat", "output_dir"),
)
"""Beginnings of keys that change no step, or that are compared with the workload."""
_SILENT = frozenset(
    ["adapter", "base_model", "model_name_or_path", "model", "model_revision", "revision_of_model", "use_hf"]
)
_SILENT |= {
    "template",
    "stage",
    "do_train",
    "finetuning_type",
    "tuner_type",
    "target_modules",
    "use_rslora",
    "cutoff_len",
}
_SILENT |= {
    "sequence_len",
    "max_length",
    "tokenizer_type",
    "model_type",
    "type",
    "overwrite_cache",
    "overwrite_output_dir",
}
_SILENT |= {"trust_remote_code", "max_samples", "preprocessing_num_workers", "plot_loss", "torch_dtype", "strict"}
_SILENT |= {"gradient_checkpointing_kwargs", "use_reentrant_gc", "trainable_parameters", "unfrozen_parameters", "ENV"}
_SILENT |= {"attn_implementation", "attn_impl", "flash_attn", "use_cpu", "add_version", "excess_length_strategy"}


def recognised(values: Mapping[str, JsonValue]) -> Tool | None:
    """Tool whose file an object is; None for any other."""
    return next((tool for tool in _TOOLS if tool.marks & values.keys()), None)


def fields_of(tool: Tool, values: Mapping[str, JsonValue], ranks: int) -> TrainerFields:
    """Translate a tool's file into fields of TrainingArguments.

    Raises:
        ValueError: the tool does not know a key, or takes no such value.
    """
    _check_names(tool, values)
    fields = TrainerFields(dict(values))
    for key, name in tool.renamed.items():
        fields.rename(key, name)
    tool.translate(fields, ranks)
    if fields.values.get("deepspeed") and fields.values.get("fsdp"):
        sharding = fields.names.get("fsdp", "fsdp")
        raise ValueError(
            f"baseline.deepspeed and baseline.{sharding} are both set; a training takes one: drop one of them"
        )
    return fields


def read(
    tool: Tool, top: Section, fields: TrainerFields, workload: Workload, cluster: Cluster, notes: list[str]
) -> TrialConfig:
    """Read a baseline configuration from a tool's file, translated by `fields_of`.

    Raises:
        ValueError: a contradiction with the workload or the cluster.
    """
    notes += fields.notes
    values = top.values()
    _check_rows(tool, top, workload, notes)
    _check_adapter(tool, values, workload, notes)
    _check_parallel(tool, top)
    names = {key for key in values if key in _SILENT or key.startswith(_SILENT_PREFIXES)} - _READ
    names |= {*tool.packing, *tool.quantised, *tool.parallel, *_DORA}
    shown = Section({key: value for key, value in values.items() if key not in names}, "baseline", fields.names)
    config = training_arguments.read_fields(_with_precision(tool, shown, workload), workload, cluster, notes)
    return _with_rest(config, fields.after)


_READ = frozenset(["lr_scheduler_type", "adam_beta1"])
"""Fields that the Trainer's reader reads, although their beginning is one of data or logging."""


@cache
def _known_keys(name: str) -> tuple[str, frozenset[str]]:
    document = json.loads((package_files(__package__) / "fields" / f"{name}.json").read_text(encoding="utf-8"))
    return document["version"], frozenset(document["keys"])


def _check_names(tool: Tool, values: Mapping[str, JsonValue]) -> None:
    """Reject keys that the tool does not know: axolotl and ms-swift would train with a default, without a word."""
    version, known = _known_keys(tool.keys_file)
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            remedy = f"did you mean {near[0]}?" if near else "drop it"
            raise ValueError(f"baseline.{key:.100} ({value!r:.60}) is no key of {tool.title} {version}; {remedy}")


def _check_rows(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    length = top.integer(tool.length)
    if length is not None and length != workload.sequence_length:
        raise ValueError(
            f"{top.name(tool.length)} ({length}), but the workload's sequence_length is {workload.sequence_length}; make them "
            "equal"
        )
    packing = next((key for key in tool.packing if top.get(key) in _TRUE), None)
    if packing is not None and workload.data is not None:
        raise ValueError(
            f"{top.name(packing)} (true) packs samples, which no trial does; set it to false, or leave out data"
        )
    if packing is not None:
        notes.append(f"{top.name(packing)}: measured with full rows of one sample each")
    grouped = top.get("group_by_length") in _TRUE or top.get("train_sampling_strategy") == "group_by_length"
    if workload.data is not None and grouped != (workload.data.layout == "grouped"):
        stated = "group_by_length" if "group_by_length" in top else "train_sampling_strategy"
        raise ValueError(
            f"{top.name(stated)} ({str(grouped).lower()}), but the workload's data.layout is {workload.data.layout!r}; use "
            f"layout {'grouped' if grouped else 'padded'!r}, or change the file"
        )


def _check_parallel(tool: Tool, top: Section) -> None:
    for key in tool.parallel:
        size = top.integer(key)
        if size is not None and size > 1:
            raise ValueError(f"{top.name(key)} ({size}) is not offered: all ranks are data-parallel; use 1 or drop it")


def _check_adapter(tool: Tool, values: Fields, workload: Workload, notes: list[str]) -> None:
    """Compare what the file trains with the workload's adapter."""
    for key in (*tool.quantised, *_DORA):
        if values.get(key) not in (None, False, "false", 0):
            raise ValueError(
                f"baseline.{key} ({values[key]!r:.60}) is trained by no trial; drop it, or bring your own code"
            )
    stated, ours = tool.adapter(values), workload.adapter
    if not stated.is_known:
        if ours is None:
            raise ValueError(
                f"baseline.{stated.key} trains a part of the weights, but the workload trains all; name it by adapter in the "
                "workload"
            )
        notes.append(f"baseline.{stated.key} is not compared: measured as the workload's {ours.describe()}")
        return
    theirs = _adapter_of(stated)
    if theirs != ours:
        line = json.dumps(stated.settings)
        raise ValueError(
            f"baseline.{stated.key} ({theirs.describe() if theirs else 'all weights'}), but the workload trains "
            f'{ours.describe() if ours else "all weights"}; make them equal ("adapter": {line} in the study\'s workload)'
        )
    if values.get(_DROPOUT) not in (None, 0, 0.0):
        notes.append(f"baseline.{_DROPOUT} is not applied: trials have no dropout")


def _adapter_of(stated: StatedAdapter) -> Lora | LastLayers | None:
    if stated.settings is None:
        return None
    kind = LastLayers if stated.settings.get("kind") == "last_layers" else Lora
    try:
        return kind.model_validate(stated.settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "settings"
        raise ValueError(
            f"baseline.{stated.key}: its {field} ({first['input']!r:.60}) is no setting of an adapter; correct it"
        ) from error


def _with_precision(tool: Tool, top: Section, workload: Workload) -> Section:
    """Section whose switches for precision mean what they mean in TrainingArguments."""
    values = top.values()
    low = workload.precision.has_low_states
    if values.pop("pure_bf16", None) in _TRUE:
        if not low:
            raise ValueError(
                f"baseline.pure_bf16 (true), but the workload's precision ({workload.precision.name!r}) keeps float32 states; "
                "use precision 'bf16-true'"
            )
        values.pop("bf16", None)
    elif low and tool is not llama_factory.TOOL:
        # Both load weights in bfloat16, beside which their switch only adds autocast.
        values.pop("bf16", None)
    return top.with_values(values)


def _with_rest(config: TrialConfig, after: Mapping[str, Any]) -> TrialConfig:
    strategy, changes = config.strategy, {}
    if isinstance(strategy, Fsdp2Config):
        own = {name: value for name, value in after.items() if name in ("dp_replicate", "dp_shard", "pin_memory")}
        if "dp_replicate" in own and "dp_shard" not in own:
            own["dp_shard"] = max(1, strategy.dp_shard // max(1, own["dp_replicate"]))
        changes["strategy"] = Fsdp2Config.model_validate({**strategy.model_dump(), **own})
    if (mode := after.get("activation_checkpointing")) is not None:
        changes["activation_checkpointing"] = mode
    return config.model_copy(update=changes)
